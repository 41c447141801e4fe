import { PassThrough, Readable } from 'node:stream';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { sizeOf } from '../../../../scripts/soak-sizes.ts';
import {
  type BackupAbout,
  DamagedBackup,
  readBackup,
  readBackupAbout,
  writeBackup,
} from './backup-stream.ts';

const about = { backup_id: 'bkp_x', database_name: 'orders' };

async function write(files: [string, Buffer][], header: BackupAbout = about): Promise<Buffer> {
  const sink = new PassThrough();
  const chunks: Buffer[] = [];
  sink.on('data', (chunk: Buffer) => chunks.push(chunk));
  await writeBackup(sink, header, async (add) => {
    for (const [path, content] of files) await add(path, content);
  });
  return Buffer.concat(chunks);
}

/** In pieces of odd sizes, as a disk or a network gives them. */
function* pieces(bytes: Buffer) {
  for (let at = 0; at < bytes.length; at += 1009) yield bytes.subarray(at, at + 1009);
}

async function read(bytes: Buffer): Promise<Map<string, Buffer>> {
  const files = new Map<string, Buffer>();
  let path = '';
  await readBackup(Readable.from(pieces(bytes)), {
    file(name) {
      path = name;
      files.set(path, Buffer.alloc(0));
    },
    data(content) {
      files.set(path, Buffer.concat([files.get(path)!, content]));
    },
  });
  return files;
}

const sample: [string, Buffer][] = [
  ['data/', Buffer.alloc(0)],
  ['data/PG_VERSION', Buffer.from('18\n')],
  ['data/base/5/1259', Buffer.from(Array.from({ length: 5000 }, (_, i) => (i * 7919) % 251))],
  ['data/empty', Buffer.alloc(0)],
];

describe('a backup', () => {
  it('gives back what was put in, whatever it was', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(
          fc.tuple(fc.stringMatching(/^[a-z]{1,8}$/), fc.uint8Array({ maxLength: 3000 })),
          {
            selector: ([name]) => name,
            maxLength: 8,
          },
        ),
        async (files) => {
          const content = files.map(([name, bytes]): [string, Buffer] => [
            name,
            Buffer.from(bytes),
          ]);
          expect([...(await read(await write(content)))]).toEqual(content);
        },
      ),
      { numRuns: 50 },
    );
  });

  it('may hold files larger than a chunk, and chunks that do not compress', async () => {
    const noise = Buffer.from(Array.from({ length: 2_500_000 }, () => Math.random() * 256));
    const files: [string, Buffer][] = [
      ['noise', noise],
      ['zeros', Buffer.alloc(3_000_000)],
    ];
    const found = await read(await write(files));
    for (const [path, content] of files) expect(found.get(path)?.equals(content)).toBe(true);
  });

  it('says what it is without being read whole', async () => {
    const bytes = await write(sample);
    expect(await readBackupAbout(Readable.from(pieces(bytes)))).toMatchObject(about);
  });

  it('fails when its sink does', async () => {
    const sink = new PassThrough();
    sink.on('data', () => sink.destroy(new Error('disk full')));
    await expect(
      writeBackup(sink, about, async (add) => {
        for (let i = 0; i < 100; i++) await add(`f${i}`, Buffer.alloc(100_000, i));
      }),
    ).rejects.toThrow('disk full');
  });
});

describe('a damaged backup', () => {
  it('is found wherever a bit is flipped', async () => {
    const bytes = await write(sample);
    const positions =
      sizeOf('flipped-bytes') >= bytes.length
        ? bytes.keys()
        : Array.from({ length: sizeOf('flipped-bytes') }, () =>
            Math.floor(Math.random() * bytes.length),
          );
    for (const at of positions) {
      const flipped = Buffer.from(bytes);
      flipped[at] = flipped[at]! ^ (1 << (at % 8));
      await expect(read(flipped), `byte ${at}`).rejects.toThrow(DamagedBackup);
    }
  });

  it('is named: where, and in which file', async () => {
    const noise = Buffer.from(Array.from({ length: 4_000_000 }, () => Math.random() * 256));
    const bytes = await write([...sample, ['data/base/5/2619', noise], ['data/last', noise]]);
    const middle = Math.floor(bytes.length / 4);
    bytes[middle] = bytes[middle]! ^ 0xff;
    await expect(read(bytes)).rejects.toThrow(/damaged at byte \d+ \(data\/base\/5\/2619\)/);
  });

  it('is found wherever it is cut off, or has something appended', async () => {
    const bytes = await write(sample);
    for (let length = 0; length < bytes.length; length += 97)
      await expect(read(bytes.subarray(0, length)), `${length} bytes`).rejects.toThrow(
        DamagedBackup,
      );
    await expect(read(Buffer.concat([bytes, Buffer.from('x')]))).rejects.toThrow(DamagedBackup);
    await expect(read(Buffer.concat([bytes, bytes]))).rejects.toThrow(DamagedBackup);
  });

  it('is found when a whole record is missing or doubled', async () => {
    const bytes = await write(sample);
    const records: [number, number][] = [];
    for (let at = 'coppice backup\n'.length; at < bytes.length; ) {
      const length = 9 + bytes.readUInt32BE(at + 1);
      records.push([at, at + length]);
      at += length;
    }
    for (const [from, to] of records.slice(1, -1)) {
      const without = Buffer.concat([bytes.subarray(0, from), bytes.subarray(to)]);
      await expect(read(without)).rejects.toThrow(DamagedBackup);
      const doubled = Buffer.concat([bytes.subarray(0, to), bytes.subarray(from)]);
      await expect(read(doubled)).rejects.toThrow(DamagedBackup);
    }
  });

  it.each(['../outside', '/absolute', 'data/../../x', 'a//b', './a', ''])(
    'cannot place a file at %j',
    async (path) => {
      await expect(read(await write([[path, Buffer.from('x')]]))).rejects.toThrow(DamagedBackup);
    },
  );
});
