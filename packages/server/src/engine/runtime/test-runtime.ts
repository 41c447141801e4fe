// The real runtime for tests, and a short way to run code in it.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createLogger } from '../../kernel/logger.ts';
import { compileBundle } from './compile.ts';
import { createRuntime, defaultMemoryMb, type Runtime, type RuntimeOptions } from './runtime.ts';
import type { CallResult, Outcome } from './sandbox.ts';

export interface RunOptions {
  input?: unknown;
  timeoutMs?: number;
  memoryMb?: number;
  allowlist?: string[];
  secrets?: Record<string, string>;
  /** Runs of the same name share their sandboxes. */
  name?: string;
  onCall?(method: string, args: Record<string, unknown>, bytes: Buffer): Promise<CallResult>;
}

export type TestRun = Outcome & { logs: string[] };

export interface TestRuntime {
  runtime: Runtime;
  /** `source`: a module that exports `handler`. */
  run(source: string, options?: RunOptions): Promise<TestRun>;
  /** The result of a run that must complete. */
  result(source: string, options?: RunOptions): Promise<unknown>;
  close(): Promise<void>;
}

export function startTestRuntime(options: Partial<RuntimeOptions> = {}): TestRuntime {
  const directory = mkdtempSync(join(tmpdir(), 'coppice-runtime-test-'));
  const runtime = createRuntime({
    directory,
    bubblewrap: undefined,
    allowUnisolated: false,
    privateAllowed: [],
    spares: 2,
    maxSandboxes: 12,
    maxPerFunction: 4,
    maxWaitMs: 20_000,
    idleMs: 30_000,
    logger: createLogger('error'),
    ...options,
  });
  let lastName = 0;

  async function run(source: string, given: RunOptions = {}): Promise<TestRun> {
    const { allowlist = [], timeoutMs = 20_000, name = `f${++lastName}` } = given;
    const logs: string[] = [];
    const outcome = await runtime.run({
      tenantId: `tenant of ${name}`,
      functionId: name,
      versionId: name,
      memoryMb: given.memoryMb ?? defaultMemoryMb,
      program: async () => ({
        ...(await compileBundle(Buffer.from(source), 'index', false)),
        entry: 'handler',
        allowlist,
      }),
      invocation: {
        input: given.input ?? {},
        self: {},
        secrets: given.secrets ?? {},
        timeoutMs,
        onLog: (level, text) => void logs.push(`${level} ${text}`),
        onCall: given.onCall ?? (async () => ({ value: null })),
      },
    });
    return { ...outcome, logs };
  }

  return {
    runtime,
    run,
    async result(source, given) {
      const outcome = await run(source, given);
      if (outcome.status !== 'completed') throw new Error(JSON.stringify(outcome));
      return JSON.parse(outcome.resultJson);
    },
    async close() {
      await runtime.close();
      rmSync(directory, { recursive: true, force: true });
    },
  };
}
