// One sandbox: a process that runs the code of one function version, one invocation at a time.
//
//   booting ──ready──► spare ──load──► idle ◄──settled── settling
//      │                 │               │                   ▲
//      └─────────────────┴──► ended ◄────┴──invoke──► busy ──┘ result
//
// Between invocations the process is stopped (SIGSTOP), so that nothing a handler left behind runs.
// Every frame is the tenant's word: one that does not belong to the current invocation is ignored,
// and a sandbox that sends many of them, or one that is not a frame at all, ends.
import { randomBytes } from 'node:crypto';
import { rm } from 'node:fs/promises';
import type { Egress } from './egress.ts';
import { createFrameReader, encodeFrame, type Frame } from './frames.ts';
import type { Launched } from './launcher.ts';

export interface Program {
  code: Buffer;
  format: 'cjs' | 'esm';
  /** Name of the exported handler. */
  entry: string;
  allowlist: readonly string[];
}

export interface RunError {
  name: string;
  message: string;
}

export type Outcome =
  | { status: 'completed'; resultJson: string }
  | { status: 'failed'; error: RunError }
  | { status: 'timed_out' };

/** What a call of the function to the service gives back: a JSON value, or bytes. */
export type CallResult = { value: unknown } | { bytes: Uint8Array };

export interface Invocation {
  input: unknown;
  self: object;
  secrets: Readonly<Record<string, string>>;
  timeoutMs: number;
  onLog(level: string, text: string): void;
  /** `ctx.db`, `ctx.fs`; an error's own fields reach the function. */
  onCall(method: string, args: Record<string, unknown>, bytes: Buffer): Promise<CallResult>;
}

export type SandboxState = 'booting' | 'spare' | 'idle' | 'busy' | 'settling' | 'ended';

export interface Sandbox {
  readonly state: SandboxState;
  readonly memoryMb: number;
  /** Resolves once it can take a program; rejects if it never will. */
  readonly booted: Promise<void>;
  load(program: Program): Promise<void>;
  invoke(invocation: Invocation): Promise<Outcome>;
  /** After an invocation: whether it may have another. */
  settled(): Promise<boolean>;
  end(): Promise<void>;
}

export interface SandboxOptions {
  launched: Launched;
  egress: Egress;
  runDirectory: string;
  memoryMb: number;
  onEnd(): void;
}

const bootTimeoutMs = 20_000;
const settleTimeoutMs = 1_000;
/** How long a process that must end may take to be known by its number. */
const unknownPidMs = 2_000;
const maxOpenCalls = 32;
const maxStrayFrames = 1_000;
const maxLogBytes = 1024 * 1024;
const levels = new Set(['DEBUG', 'INFO', 'WARN', 'ERROR']);

interface Current {
  id: string;
  invocation: Invocation;
  openCalls: number;
  logBytes: number;
  finish(outcome: Outcome): void;
}

export function createSandbox(options: SandboxOptions): Sandbox {
  const { launched, memoryMb } = options;
  const { child, stdin, stdout, cgroup, memoryWatch } = launched;
  const boot = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const read = createFrameReader();
  let state: SandboxState = 'booting';
  let pid: number | undefined;
  let current: Current | undefined;
  let timedOut = false;
  /** Set when the process has to end: at once, or as soon as it is known by its number. */
  let killed = false;
  let strayFrames = 0;
  let settling: PromiseWithResolvers<boolean> | undefined;

  boot.promise.catch(() => {});
  launched.pid.then(
    (number) => {
      pid = number;
      if (killed) kill();
    },
    () => child.kill('SIGKILL'),
  );
  const bootTimer = setTimeout(kill, bootTimeoutMs);
  stdin.on('error', () => {});
  stdout.on('data', (chunk: Buffer) => {
    try {
      for (const frame of read(chunk)) receive(frame);
    } catch {
      kill();
    }
  });
  child.on('error', () => finished(null, null));
  // `close` comes after the last byte of output: what was logged before the end has been read.
  child.on('close', finished);

  function receive({ message, tail }: Frame): void {
    const isCurrent = current !== undefined && message.id === current.id;
    if (message.type === 'ready' && state === 'booting') {
      clearTimeout(bootTimer);
      state = 'spare';
      boot.resolve();
    } else if (state === 'busy' && isCurrent && message.type === 'log') logged(current!, message);
    else if (state === 'busy' && isCurrent && message.type === 'call')
      void called(current!, message, tail);
    else if (state === 'busy' && isCurrent && message.type === 'result')
      resulted(current!, message, tail);
    else if (state === 'settling' && isCurrent && message.type === 'settled')
      settle(message.tampered !== true);
    else if (++strayFrames > maxStrayFrames) kill();
  }

  function logged(run: Current, { level, text }: Record<string, unknown>): void {
    const line = String(text);
    run.logBytes += line.length + 16;
    if (run.logBytes > maxLogBytes) kill();
    else run.invocation.onLog(levels.has(String(level)) ? String(level) : 'INFO', line);
  }

  async function called(run: Current, message: Record<string, unknown>, tail: Buffer) {
    const { call, method, args } = message;
    if (typeof call !== 'number' || typeof method !== 'string' || !isRecord(args)) return kill();
    const reply = (fields: object, bytes?: Uint8Array) => {
      if (run === current && state === 'busy')
        stdin.write(encodeFrame({ type: 'reply', call, ...fields }, bytes));
    };
    if (run.openCalls >= maxOpenCalls)
      return reply({ error: { message: `more than ${maxOpenCalls} calls at once` } });
    run.openCalls++;
    try {
      const result = await run.invocation.onCall(method, args, tail);
      if ('bytes' in result) reply({ hasTail: true }, result.bytes);
      else reply({ value: result.value });
    } catch (error) {
      reply({ error: plainError(error) });
    } finally {
      run.openCalls--;
    }
  }

  function resulted(run: Current, message: Record<string, unknown>, tail: Buffer): void {
    if (memoryWatch?.exceeded()) {
      kill();
      return;
    }
    memoryWatch?.stop();
    state = 'settling';
    settling = Promise.withResolvers();
    const timer = setTimeout(() => settle(false), settleTimeoutMs);
    void settling.promise.then(() => clearTimeout(timer));
    if (isRecord(message.error)) {
      const { name, message: text } = message.error;
      run.finish({ status: 'failed', error: { name: String(name), message: String(text) } });
    } else run.finish(parsedResult(tail));
  }

  function settle(reusable: boolean): void {
    current = undefined;
    if (!reusable) kill();
    else if (state === 'settling') {
      state = 'idle';
      signal('SIGSTOP');
    }
    settling?.resolve(reusable);
  }

  function signal(name: NodeJS.Signals): void {
    try {
      if (pid !== undefined) process.kill(pid, name);
    } catch {
      // It has ended; `close` says so.
    }
  }

  /**
   * Not bubblewrap alone: killed right after it has made the process inside, it would leave that one
   * waiting for ever. It tells the number within moments.
   */
  function kill(): void {
    killed = true;
    if (pid === undefined) {
      setTimeout(() => child.kill('SIGKILL'), unknownPidMs).unref();
      return;
    }
    signal('SIGKILL');
    child.kill('SIGKILL');
  }

  function finished(code: number | null, signalName: NodeJS.Signals | null): void {
    if (state === 'ended') return;
    const wasBusy = state === 'busy' ? current : undefined;
    state = 'ended';
    clearTimeout(bootTimer);
    memoryWatch?.stop();
    boot.reject(new Error('the sandbox did not start'));
    wasBusy?.finish(
      timedOut ? { status: 'timed_out' } : { status: 'failed', error: death(code, signalName) },
    );
    settling?.resolve(false);
    cgroup?.remove();
    void options.egress.close();
    void rm(options.runDirectory, { recursive: true, force: true });
    ended.resolve();
    options.onEnd();
  }

  /** Why a process ended that nobody asked to. bubblewrap reports a signal as 128 + its number. */
  function death(code: number | null, signalName: NodeJS.Signals | null): RunError {
    if (cgroup?.ranOutOfMemory() || memoryWatch?.exceeded())
      return {
        name: 'MemoryLimitError',
        message: `the function used more than its memory limit of ${memoryMb} MB`,
      };
    if (signalName !== null || (code !== null && code > 128))
      return {
        name: 'CrashError',
        message: `the function's process was ended by the system; most likely it ran out of its memory limit of ${memoryMb} MB`,
      };
    return { name: 'ExitError', message: `the function ended its own process (exit code ${code})` };
  }

  return {
    get state() {
      return state;
    },
    memoryMb,
    booted: boot.promise,

    async load(program) {
      if (state !== 'spare') throw new Error(`a ${state} sandbox cannot take a program`);
      state = 'idle';
      const egress = options.egress.enabled;
      if (program.allowlist.length > 0) await options.egress.open(program.allowlist);
      const { entry, format, allowlist } = program;
      stdin.write(encodeFrame({ type: 'load', entry, format, allowlist, egress }, program.code));
    },

    invoke(invocation) {
      if (state !== 'idle') throw new Error(`a ${state} sandbox cannot be invoked`);
      return new Promise((resolve) => {
        const id = randomBytes(16).toString('hex');
        const timer = setTimeout(() => {
          timedOut = true;
          kill();
        }, invocation.timeoutMs);
        const finish = (outcome: Outcome) => {
          clearTimeout(timer);
          resolve(outcome);
        };
        state = 'busy';
        timedOut = false;
        settling = undefined;
        strayFrames = 0;
        current = { id, invocation, openCalls: 0, logBytes: 0, finish };
        if (pid !== undefined) memoryWatch?.start(pid, kill);
        signal('SIGCONT');
        const { input, self, secrets } = invocation;
        stdin.write(encodeFrame({ type: 'invoke', id, input, self, secrets }));
      });
    },

    settled: async () => (await settling?.promise) ?? false,

    async end() {
      kill();
      await ended.promise;
    },
  };
}

function parsedResult(tail: Buffer): Outcome {
  const resultJson = tail.toString('utf8');
  try {
    JSON.parse(resultJson);
    return { status: 'completed', resultJson };
  } catch {
    return { status: 'failed', error: { name: 'TypeError', message: 'the result is not JSON' } };
  }
}

/** What a function may know of a failed call. */
function plainError(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { name: 'Error', message: 'the call failed' };
  const { name, message } = error;
  const fields = error as { code?: unknown; detail?: unknown; hint?: unknown };
  const plain: Record<string, unknown> = { name, message };
  for (const key of [
    'code',
    'detail',
    'hint',
    'constraint',
    'table',
    'column',
    'position',
  ] as const)
    if (typeof fields[key as 'code'] === 'string') plain[key] = fields[key as 'code'];
  return plain;
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
