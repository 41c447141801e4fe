import fc from 'fast-check';
import { expect, test } from 'vitest';
import { destinationOf, serverParameters } from './destination.ts';
import {
  ProtocolViolation,
  parseFirstPacket,
  type StartupPacket,
  startupMessage,
} from './protocol.ts';
import { Refusal } from './refusal.ts';

const parse = (parameters: Record<string, string>) =>
  parseFirstPacket(
    startupMessage(new Map(Object.entries(parameters))).subarray(4),
  ) as StartupPacket;

test('a start-up packet is read as it was written', () => {
  const text = fc.string().filter((value) => value !== '' && !value.includes('\0'));
  fc.assert(
    fc.property(
      fc.dictionary(
        text,
        text.map((value) => value.toWellFormed()),
      ),
      (parameters) => {
        const wellFormed = Object.fromEntries(
          Object.entries(parameters).filter(
            ([name]) => name.isWellFormed() && !name.startsWith('_pq_.'),
          ),
        );
        expect(Object.fromEntries(parse(wellFormed).parameters)).toEqual(wellFormed);
      },
    ),
  );
});

test('whatever the bytes: a packet or a violation', () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ maxLength: 300 }),
      fc.constantFrom(0x30000, 80877102, 5),
      (noise, code) => {
        const head = Buffer.alloc(4);
        head.writeInt32BE(code);
        for (const body of [Buffer.from(noise), Buffer.concat([head, noise])])
          try {
            parseFirstPacket(body);
          } catch (error) {
            expect(error).toBeInstanceOf(ProtocolViolation);
          }
      },
    ),
  );
});

test('user names: database, separator, role', () => {
  for (const [user, databaseId, role] of [
    ['db_abc.admin', 'db_abc', 'admin'],
    ['db_abc:admin', 'db_abc', 'admin'],
    ['db_abc.with.dots:and "quotes"', 'db_abc', 'with.dots:and "quotes"'],
  ] as const)
    expect(destinationOf(parse({ user }))).toEqual({ databaseId, role, databaseName: 'postgres' });
  for (const user of [
    'admin',
    'db_abc',
    'db_abc.',
    '.admin',
    'DB_abc.admin',
    'db_.admin',
    'xdb_a.b',
  ])
    expect(() => destinationOf(parse({ user }))).toThrow(Refusal);
});

test('the server gets the role, and no way to be another', () => {
  const startup = parse({
    user: 'db_abc.admin',
    database: 'shadow',
    replication: 'no',
    options: '-c work_mem=8MB',
    application_name: 'x',
  });
  expect(Object.fromEntries(serverParameters(startup, destinationOf(startup)))).toEqual({
    user: 'admin',
    database: 'shadow',
    options: '-c work_mem=8MB',
    application_name: 'x',
  });
});

test('of a parameter given twice the last one counts, as in Postgres', () => {
  const packet = Buffer.concat([
    Buffer.of(0, 3, 0, 0),
    Buffer.from('user\0db_abc.admin\0user\0db_abc.readonly\0\0'),
  ]);
  expect(destinationOf(parseFirstPacket(packet) as StartupPacket).role).toBe('readonly');
});
