import { expect, it } from 'vitest';
import { AppError } from '../../kernel/app-error.ts';
import { parseInstant } from './instant.ts';

const micros = (iso: string, extra: bigint) => BigInt(Date.parse(iso)) * 1000n + extra;

it.each([
  ['2026-01-31T12:34:56.789Z', micros('2026-01-31T12:34:56.789Z', 999n)],
  ['2026-01-31T12:34:56Z', micros('2026-01-31T12:34:56Z', 999n)],
  ['2026-01-31T12:34:56.7Z', micros('2026-01-31T12:34:56.700Z', 999n)],
  ['2026-01-31T12:34:56.789123Z', micros('2026-01-31T12:34:56.789Z', 123n)],
  ['2026-01-31T12:34:56.789123999Z', micros('2026-01-31T12:34:56.789Z', 123n)],
  ['2026-01-31T12:34:56.7890Z', micros('2026-01-31T12:34:56.789Z', 0n)],
  ['2026-01-31t12:34:56z', micros('2026-01-31T12:34:56Z', 999n)],
  ['2026-01-31 12:34:56+00:00', micros('2026-01-31T12:34:56Z', 999n)],
  ['2026-01-31T14:34:56.789+02:00', micros('2026-01-31T12:34:56.789Z', 999n)],
  ['2024-02-29T00:00:00Z', micros('2024-02-29T00:00:00Z', 999n)],
])('%s', (text, expected) => {
  expect(parseInstant(text)).toBe(expected);
});

it.each([
  '',
  'yesterday',
  '2026-01-31',
  '2026-01-31T12:34:56',
  '2026-02-30T00:00:00Z',
  '2026-13-01T00:00:00Z',
  '2026-01-31T25:00:00Z',
  '2026-01-31T12:60:00Z',
  '2026-01-31T12:34:56.Z',
  '1700000000',
  '2026-01-31T12:34:56Z; drop table x',
  '+012026-01-31T12:34:56Z',
])('%j is malformed', (text) => {
  expect(() => parseInstant(text)).toThrow(AppError);
});
