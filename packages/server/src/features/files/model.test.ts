// Random sequences of operations against the model in memory: every outcome and every byte agree.
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { seed, sizeOf } from '../../../../../scripts/soak-sizes.ts';
import { openTestEngine, type TestEngine } from '../../engine/postgres/history/open-test-engine.ts';
import { FileError, type Files, type FilesActor } from '../../kernel/files.ts';
import { createLogger } from '../../kernel/logger.ts';
import { createFiles, type FilesFeature } from './index.ts';
import { ModelFiles } from './model-files.ts';

const sequences = sizeOf('file-sequences');

let running: TestEngine;
let feature: FilesFeature;
let actor: FilesActor;

beforeAll(async () => {
  running = await openTestEngine();
  feature = createFiles({
    engine: running.engine,
    logger: createLogger('silent'),
    limits: { quotaBytes: 2 ** 40, operationsAtOnce: 4, streamsAtOnce: 4 },
  });
  actor = { databaseId: await running.create(), role: 'admin' };
});
afterAll(async () => {
  await feature.close();
  await running.close();
});

/** One operation, on both sides. */
interface Step {
  text: string;
  onModel(files: ModelFiles): unknown;
  onFiles(files: Files, actor: FilesActor): Promise<unknown>;
}

const name = fc.constantFrom('a', 'b', 'ü');
const path = fc
  .oneof(
    { weight: 3, arbitrary: fc.array(name, { minLength: 1, maxLength: 1 }) },
    { weight: 4, arbitrary: fc.array(name, { minLength: 2, maxLength: 2 }) },
    { weight: 2, arbitrary: fc.array(name, { minLength: 3, maxLength: 4 }) },
  )
  .map((names) => `/${names.join('/')}`);
const anyPath = fc.oneof(
  { weight: 20, arbitrary: path },
  { weight: 1, arbitrary: fc.constantFrom('/', '//a//b/', '/./a', '/../a', '/a/..', 'a', '') },
);
const target = fc.oneof(
  path,
  fc
    .array(fc.constantFrom('a', 'b', '..', '.'), { minLength: 1, maxLength: 3 })
    .map((names) => names.join('/')),
);
/** Around the borders of chunks. */
const size = fc.constantFrom(0, 1, 100, 65_535, 65_536, 65_537, 131_072, 200_000);
const content = fc.tuple(size, fc.nat(255)).map(([length, seed]) => {
  const bytes = new Uint8Array(length);
  for (let i = 0; i < length; i++) bytes[i] = (seed + i * 7 + (i >> 8)) & 255;
  return bytes;
});
const mode = fc.constantFrom(0o600, 0o644, 0o755);
const flag = fc.boolean();

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ path: anyPath, content, exclusive: flag, parents: flag, mode, streamed: flag }).map(
    ({ path, content, streamed, ...options }): Step => ({
      text: `write ${path} ${content.length} ${JSON.stringify(options)}`,
      onModel: (files) => files.write(path, content, options),
      onFiles(files, actor) {
        const target = { operation: 'write' as const, path, ...options };
        return streamed
          ? files.writeStream(actor, target, pieces(content))
          : files.write(actor, target, Buffer.from(content));
      },
    }),
  ),
  fc.record({ path: anyPath, content, streamed: flag }).map(
    ({ path, content, streamed }): Step => ({
      text: `append ${path} ${content.length}`,
      onModel: (files) => files.append(path, content),
      onFiles(files, actor) {
        const target = { operation: 'append' as const, path };
        return streamed
          ? files.writeStream(actor, target, pieces(content))
          : files.write(actor, target, Buffer.from(content));
      },
    }),
  ),
  fc.record({ path: anyPath, content, offset: size, streamed: flag }).map(
    ({ path, content, offset, streamed }): Step => ({
      text: `pwrite ${path} at ${offset} ${content.length}`,
      onModel: (files) => files.pwrite(path, offset, content),
      onFiles(files, actor) {
        const target = { operation: 'pwrite' as const, path, offset };
        return streamed
          ? files.writeStream(actor, target, pieces(content))
          : files.write(actor, target, Buffer.from(content));
      },
    }),
  ),
  fc.tuple(anyPath, size).map(
    ([path, size]): Step => ({
      text: `truncate ${path} ${size}`,
      onModel: (files) => files.truncate(path, size),
      onFiles: (files, actor) => files.truncate(actor, path, size),
    }),
  ),
  fc.tuple(anyPath, mode, flag).map(
    ([path, mode, recursive]): Step => ({
      text: `mkdir ${path} ${recursive}`,
      onModel: (files) => files.mkdir(path, mode, recursive),
      onFiles: (files, actor) => files.mkdir(actor, path, { mode, recursive }),
    }),
  ),
  anyPath.map(
    (path): Step => ({
      text: `unlink ${path}`,
      onModel: (files) => files.unlink(path),
      onFiles: (files, actor) => files.unlink(actor, path),
    }),
  ),
  fc.tuple(anyPath, flag, flag).map(
    ([path, recursive, force]): Step => ({
      text: `rm ${path} ${recursive} ${force}`,
      onModel: (files) => files.rm(path, recursive, force),
      onFiles: (files, actor) => files.rm(actor, path, { recursive, force }),
    }),
  ),
  fc.tuple(anyPath, anyPath).map(
    ([path, to]): Step => ({
      text: `rename ${path} ${to}`,
      onModel: (files) => files.rename(path, to),
      onFiles: (files, actor) => files.rename(actor, path, to),
    }),
  ),
  fc.tuple(anyPath, target).map(
    ([path, target]): Step => ({
      text: `symlink ${path} -> ${target}`,
      onModel: (files) => files.symlink(path, target),
      onFiles: (files, actor) => files.symlink(actor, path, target),
    }),
  ),
  fc.tuple(anyPath, mode).map(
    ([path, mode]): Step => ({
      text: `chmod ${path} ${mode}`,
      onModel: (files) => files.chmod(path, mode),
      onFiles: (files, actor) => files.chmod(actor, path, mode),
    }),
  ),
  fc.array(fc.tuple(anyPath, content), { minLength: 1, maxLength: 3 }).map(
    (list): Step => ({
      text: `batch ${list.map(([path]) => path).join(' ')}`,
      onModel: (files) => list.map(([path, content]) => files.write(path, content)),
      onFiles: (files, actor) =>
        files.batchWrite(
          actor,
          list.map(([path, content]) => ({ path, content: Buffer.from(content) })),
        ),
    }),
  ),
  fc.tuple(anyPath, size, fc.option(size, { nil: undefined })).map(
    ([path, offset, length]): Step => ({
      text: `read ${path} ${offset} ${length}`,
      onModel: (files) => Buffer.from(files.read(path, offset, length)),
      onFiles: (files, actor) => files.read(actor, path, { offset, length }),
    }),
  ),
  fc.tuple(anyPath, flag).map(
    ([path, follow]): Step => ({
      text: `stat ${path} ${follow}`,
      onModel: (files) => files.stat(path, follow),
      onFiles: (files, actor) => files.stat(actor, path, { follow }),
    }),
  ),
  anyPath.map(
    (path): Step => ({
      text: `readdir ${path}`,
      onModel: (files) => files.readdir(path),
      onFiles: async (files, actor) => (await files.readdir(actor, path)).entries,
    }),
  ),
  anyPath.map(
    (path): Step => ({
      text: `readlink ${path}`,
      onModel: (files) => files.readlink(path),
      onFiles: (files, actor) => files.readlink(actor, path),
    }),
  ),
);

async function* pieces(content: Uint8Array): AsyncGenerator<Buffer> {
  for (let at = 0; at < content.length; at += 50_000)
    yield Buffer.from(content.subarray(at, at + 50_000));
}

class StepCommand implements fc.AsyncCommand<ModelFiles, Files> {
  readonly step: Step;

  constructor(step: Step) {
    this.step = step;
  }

  check = () => true;

  async run(model: ModelFiles, files: Files): Promise<void> {
    const expected = await outcome(async () => model.attempt(this.step.onModel));
    const actual = await outcome(() => this.step.onFiles(files, actor));
    const { failed = 'ok' } = expected as { failed?: string };
    reached.add(`${this.step.text.split(' ')[0]} ${failed}`);
    // Times are not in the model.
    expect(
      JSON.parse(JSON.stringify(actual, (key, value) => (isTime(key) ? undefined : value))),
    ).toEqual(JSON.parse(JSON.stringify(expected)));
  }

  toString = () => this.step.text;
}

/** Operations and how they ended, so that we know that the sequences lead somewhere. */
const reached = new Set<string>();

const isTime = (key: string) => ['mtime', 'ctime', 'birthtime'].includes(key);

async function outcome(operation: () => Promise<unknown>): Promise<unknown> {
  try {
    const value = await operation();
    return { value: Buffer.isBuffer(value) ? value.toString('base64') : value };
  } catch (error) {
    if (error instanceof FileError) return { failed: error.code };
    throw error;
  }
}

async function clear(): Promise<void> {
  for (const { path } of (await feature.service.readdir(actor, '/')).entries)
    await feature.service.rm(actor, path, { recursive: true });
  await feature.service.chmod(actor, '/', 0o755);
}

/** The whole tree, and what the tables promise. */
async function compareEverything(model: ModelFiles): Promise<void> {
  const expected = [...model.everything()].sort((a, b) => (a.path < b.path ? -1 : 1));
  const client = await running.connect(actor.databaseId, 'postgres');
  try {
    const { rows: found } = await client.query<{ path: string; type: string; size: string }>(
      'select path, type, size from fs.files order by path collate "C"',
    );
    expect(found.map(({ path, type, size }) => `${path} ${type} ${size}`).sort()).toEqual(
      expected.map(({ path, type, size }) => `${path} ${type} ${size}`).sort(),
    );
    for (const { path, type, content } of expected)
      if (type === 'file') {
        const bytes = await feature.service.read(actor, path);
        expect(bytes.equals(content), `content of ${path}`).toBe(true);
      }
    const { rows: promises } = await client.query(
      `select (select logical_bytes from coppice.fs_volume)
          = (select sum(size_bytes) from coppice.fs_entries) as counted,
        not exists (select from coppice.fs_chunks
          where content_id not in (select content_id from coppice.fs_entries where kind = 'file'))
          as no_orphan_chunks,
        not exists (select from coppice.fs_entries e where e.id <> 0 and not exists
          (select from coppice.fs_entries p where p.id = e.parent_id and p.kind = 'directory'))
          as no_orphan_entries,
        not exists (select from coppice.fs_chunks c join coppice.fs_entries e using (content_id)
          where c.n::bigint * 65536 + octet_length(c.data) > e.size_bytes) as nothing_past_the_end`,
    );
    expect(promises).toEqual([
      {
        counted: true,
        no_orphan_chunks: true,
        no_orphan_entries: true,
        nothing_past_the_end: true,
      },
    ]);
  } finally {
    await client.end();
  }
}

test(
  `${sequences} random sequences agree with the model`,
  async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.commands([step.map((it) => new StepCommand(it))], { maxCommands: 60, size: 'max' }),
        async (commands) => {
          await clear();
          const model = new ModelFiles();
          for (const path of ['/a/a', '/a/b', '/b/a']) {
            model.mkdir(path, 0o755, true);
            await feature.service.mkdir(actor, path, { recursive: true });
          }
          await fc.asyncModelRun(() => ({ model, real: feature.service }), commands);
          await compareEverything(model);
        },
      ),
      { numRuns: sequences, seed },
    );
    const operations = [...new Set([...reached].map((it) => it.split(' ')[0]))];
    for (const operation of operations) expect(reached).toContain(`${operation} ok`);
    // The rarer corners are sure to be met only in a long run.
    if (sequences < 1000) return;
    for (const corner of ['rename ENOTEMPTY', 'rename EISDIR', 'rename ENOTDIR'])
      expect(reached).toContain(corner);
    for (const corner of ['rm ENOTEMPTY', 'write EEXIST']) expect(reached).toContain(corner);
  },
  sequences * 3_000,
);
