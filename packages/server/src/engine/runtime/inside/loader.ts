// The first code in a sandbox, run by Deno. It speaks frames (see ../frames.ts) with the service:
// stdin brings `load`, `invoke` and `reply`; stdout takes `ready`, `loaded`, `log`, `call`, `result`
// and `settled`. Output is written synchronously, so what was logged before a kill is not lost.
//
// Nothing here protects the service, which believes no frame; it protects one invocation of a
// function from what the one before left behind. Hence: whatever is used after the tenant's code
// has run is captured first, and `settled` says whether the language's own objects were changed.
import { builtinModules, createRequire } from 'node:module';
import { setImmediate } from 'node:timers';
import { format } from 'node:util';
import { watchIntrinsics } from './intrinsics.ts';
import { bridgeEgress, guardFetch } from './network.ts';
import { toParameter, toResult, type WireResult } from './values.ts';

interface Stream {
  read(into: Uint8Array): Promise<number | null>;
  writeSync(bytes: Uint8Array): number;
}
declare const Deno: {
  stdin: Stream;
  stdout: Stream & { write: unknown };
  stderr: Stream & { write: unknown };
};

type Message = Record<string, unknown>;
type Handler = (input: unknown, ctx: unknown) => unknown;

const maxResultLength = 6 * 1024 * 1024;
const maxLogLength = 256 * 1024;
const maxErrorLength = 8 * 1024;

const { parse, stringify } = JSON;
const { apply, ownKeys } = Reflect;
const { freeze, defineProperty } = Object;
const StringOf = String;
const ErrorOf = Error;
const encoder = new TextEncoder();
const decoder = new TextDecoder();
const encode = encoder.encode.bind(encoder);
const decode = decoder.decode.bind(decoder);
const subarray = Uint8Array.prototype.subarray;
const setBytes = Uint8Array.prototype.set;
const slice = String.prototype.slice;
const formatText = format;
const readInput = Deno.stdin.read.bind(Deno.stdin);
const writeOutput = Deno.stdout.writeSync.bind(Deno.stdout);

// ---------------------------------------------------------------- frames

function send(message: Message, tail?: Uint8Array): void {
  const json = encode(stringify(message));
  const tailLength = tail?.length ?? 0;
  const frame = new Uint8Array(8 + json.length + tailLength);
  putLength(frame, 0, json.length);
  putLength(frame, 4, tailLength);
  apply(setBytes, frame, [json, 8]);
  if (tail) apply(setBytes, frame, [tail, 8 + json.length]);
  for (let written = 0; written < frame.length; )
    written += writeOutput(apply(subarray, frame, [written]));
}

function putLength(frame: Uint8Array, at: number, length: number): void {
  frame[at] = length >>> 24;
  frame[at + 1] = length >>> 16;
  frame[at + 2] = length >>> 8;
  frame[at + 3] = length;
}

const lengthAt = (bytes: Uint8Array, at: number) =>
  ((bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!) >>> 0;

async function listen(): Promise<void> {
  let buffer = new Uint8Array(64 * 1024);
  let filled = 0;
  while (true) {
    const count = await readInput(apply(subarray, buffer, [filled]));
    if (count === null) return;
    filled += count;
    let start = 0;
    while (filled - start >= 8) {
      const jsonLength = lengthAt(buffer, start);
      const end = start + 8 + jsonLength + lengthAt(buffer, start + 4);
      if (end > filled) break;
      const json = decode(apply(subarray, buffer, [start + 8, start + 8 + jsonLength]));
      const tail = new Uint8Array(end - start - 8 - jsonLength);
      apply(setBytes, tail, [apply(subarray, buffer, [start + 8 + jsonLength, end])]);
      start = end;
      receive(parse(json), tail);
    }
    const rest = apply(subarray, buffer, [start, filled]);
    const wanted = rest.length >= 8 ? 8 + lengthAt(rest, 0) + lengthAt(rest, 4) : 0;
    if (start > 0 || wanted > buffer.length) {
      const next = wanted > buffer.length ? new Uint8Array(wanted) : buffer;
      apply(setBytes, next, [rest, 0]);
      buffer = next;
      filled = rest.length;
    }
  }
}

function receive(message: Message, tail: Uint8Array): void {
  if (message.type === 'reply') reply(message, tail);
  else if (message.type === 'load') loading = load(message, decode(tail));
  else if (message.type === 'invoke') void invoke(message);
}

// ---------------------------------------------------------------- logs

let current: { id: string; logged: number; fail(error: unknown): void } | undefined;

function log(level: string, args: unknown[]): void {
  if (!current || current.logged > maxLogLength) return;
  let text: string;
  try {
    text = apply(slice, apply(formatText, undefined, args), [0, maxLogLength]);
  } catch {
    text = '[could not be printed]';
  }
  current.logged += text.length + 1;
  send({ type: 'log', id: current.id, level, text });
}

function captureOutput(): void {
  const levels: Record<string, string> = {
    debug: 'DEBUG',
    log: 'INFO',
    info: 'INFO',
    dir: 'INFO',
    table: 'INFO',
    warn: 'WARN',
    error: 'ERROR',
    trace: 'ERROR',
  };
  for (const [name, level] of Object.entries(levels))
    (console as unknown as Record<string, unknown>)[name] = (...args: unknown[]) =>
      log(level, name === 'dir' || name === 'table' ? args.slice(0, 1) : args);
  console.assert = (condition?: unknown, ...args: unknown[]) => {
    if (!condition) log('ERROR', ['Assertion failed', ...args]);
  };
  // `process.stdout` writes through the same objects.
  for (const [stream, level] of [
    [Deno.stdout, 'INFO'],
    [Deno.stderr, 'ERROR'],
  ] as const) {
    const print = (bytes: Uint8Array) => {
      log(level, [decode(bytes)]);
      return bytes.length;
    };
    stream.writeSync = print;
    stream.write = async (bytes: Uint8Array) => print(bytes);
  }
}

// ---------------------------------------------------------------- timers

const nativeClear = clearTimeout;
const nextTurn = setImmediate;
let startedTimers: unknown[] = [];

/** Timers end with the invocation that started them. */
function ownTimers(): void {
  for (const name of ['setTimeout', 'setInterval'] as const) {
    const native = globalThis[name] as (...args: unknown[]) => unknown;
    (globalThis as Record<string, unknown>)[name] = (...args: unknown[]) => {
      const timer = apply(native, globalThis, args);
      if (current) startedTimers[startedTimers.length] = timer;
      return timer;
    };
  }
}

function clearTimers(): void {
  for (let i = 0; i < startedTimers.length; i++)
    apply(nativeClear, globalThis, [startedTimers[i] as number]);
  startedTimers = [];
}

// ---------------------------------------------------------------- calls to the service

const pending: Record<number, { resolve(value: unknown): void; reject(error: Error): void }> =
  Object.create(null);
let lastCall = 0;

function call(id: string, method: string, args: unknown, tail?: Uint8Array): Promise<unknown> {
  return new Promise((resolve, reject) => {
    if (current?.id !== id) return reject(new ErrorOf('the run has ended'));
    const number = ++lastCall;
    pending[number] = { resolve, reject };
    send({ type: 'call', id, call: number, method, args }, tail);
  });
}

function reply(message: Message, tail: Uint8Array): void {
  const waiting = pending[message.call as number];
  if (!waiting) return;
  delete pending[message.call as number];
  if (message.error) waiting.reject(toError(message.error as Message));
  else waiting.resolve(message.hasTail ? tail : message.value);
}

function toError(fields: Message): Error {
  const error = new ErrorOf(StringOf(fields.message));
  for (const key of ownKeys(fields) as string[])
    defineProperty(error, key, { value: fields[key], configurable: true, writable: true });
  return error;
}

// ---------------------------------------------------------------- ctx

function createContext(id: string, message: Message) {
  const query = async (sql: string, params: unknown[] = [], transaction?: number) =>
    toResult(
      (await call(id, 'db.query', {
        sql: StringOf(sql),
        params: params.map(toParameter),
        transaction,
      })) as WireResult,
    );

  async function transaction(work: (tx: unknown) => unknown): Promise<unknown> {
    const handle = (await call(id, 'db.begin', {})) as number;
    let result: unknown;
    try {
      result = await work(
        freeze({ query: (sql: string, params?: unknown[]) => query(sql, params, handle) }),
      );
    } catch (error) {
      await call(id, 'db.rollback', { transaction: handle }).catch(() => {});
      throw error;
    }
    await call(id, 'db.commit', { transaction: handle });
    return result;
  }

  const bytesOf = (content: unknown) =>
    content instanceof Uint8Array ? content : encode(StringOf(content));
  const onPath = (method: string) => (path: string, options?: unknown) =>
    call(id, `fs.${method}`, { path, options });
  const readFile = (path: string) => call(id, 'fs.read', { path }) as Promise<Uint8Array>;
  const fs = {
    read: readFile,
    readText: async (path: string) => decode(await readFile(path)),
    write: (path: string, content: unknown) => call(id, 'fs.write', { path }, bytesOf(content)),
    append: (path: string, content: unknown) => call(id, 'fs.append', { path }, bytesOf(content)),
    stat: onPath('stat'),
    readdir: onPath('readdir'),
    mkdir: onPath('mkdir'),
    unlink: onPath('unlink'),
    rm: onPath('rm'),
    readlink: onPath('readlink'),
    truncate: (path: string, size = 0) => call(id, 'fs.truncate', { path, size }),
    rename: (path: string, to: string) => call(id, 'fs.rename', { path, to }),
  };
  return freeze({
    db: freeze({ query: (sql: string, params?: unknown[]) => query(sql, params), transaction }),
    fs: freeze(fs),
    secrets: freeze(message.secrets),
    self: freeze(message.self),
  });
}

// ---------------------------------------------------------------- load and invoke

const importBuiltin = createRequire('file:///loader.js');
const builtins = new Set(builtinModules);
let loading: Promise<Handler>;
let intrinsicsChanged = () => false;

async function load(message: Message, code: string): Promise<Handler> {
  const {
    entry,
    format: moduleFormat,
    allowlist,
    egress,
  } = message as {
    entry: string;
    format: 'cjs' | 'esm';
    allowlist: string[];
    egress: boolean;
  };
  guardFetch(allowlist);
  if (egress && allowlist.length > 0) bridgeEgress();
  let exported: Record<string, unknown>;
  if (moduleFormat === 'esm') {
    exported = await import(`data:text/javascript;charset=utf-8,${encodeURIComponent(code)}`);
  } else {
    const module = { exports: {} as Record<string, unknown> };
    const requireBuiltin = (name: string) => {
      const bare = name.startsWith('node:') ? name.slice(5) : name;
      if (!builtins.has(bare)) throw new ErrorOf(`module ${name} is not in the bundle`);
      return importBuiltin(`node:${bare}`);
    };
    new Function('module', 'exports', 'require', code)(module, module.exports, requireBuiltin);
    exported = module.exports;
  }
  const fallback = exported?.default as Record<string, unknown> | undefined;
  const handler = exported?.[entry] ?? fallback?.[entry];
  if (typeof handler !== 'function')
    throw new ErrorOf(`the bundle does not export a function named ${entry}`);
  intrinsicsChanged = watchIntrinsics();
  return handler as Handler;
}

async function invoke(message: Message): Promise<void> {
  const id = message.id as string;
  let outcome: { json: string } | { error: Message };
  let stopped!: (error: unknown) => void;
  const uncaught = new Promise<never>((_, reject) => {
    stopped = reject;
  });
  uncaught.catch(() => {});
  current = { id, logged: 0, fail: stopped };
  try {
    const handler = await loading;
    const result = await Promise.race([
      handler(message.input, createContext(id, message)),
      uncaught,
    ]);
    outcome = { json: serialise(result) };
  } catch (error) {
    outcome = { error: describe(error) };
  }
  clearTimers();
  if ('error' in outcome) send({ type: 'result', id, error: outcome.error });
  else send({ type: 'result', id }, encode(outcome.json));
  current = undefined;
  // Not before the event loop has come round: what the handler left in it must not block it.
  apply(nextTurn, globalThis, [() => send({ type: 'settled', id, tampered: intrinsicsChanged() })]);
}

function serialise(result: unknown): string {
  const tooLarge = `the result is larger than ${maxResultLength / 1024 / 1024} MiB`;
  if (typeof result === 'string' && result.length > maxResultLength) throw new ErrorOf(tooLarge);
  const json = stringify(result) ?? 'null';
  if (json.length > maxResultLength) throw new ErrorOf(tooLarge);
  return json;
}

function describe(error: unknown): Message {
  let name = 'Error';
  let message = 'the function failed with an error that cannot be read';
  try {
    if (error instanceof ErrorOf) {
      name = StringOf(error.name);
      message = StringOf(error.message);
      if (error.stack) log('ERROR', [error.stack]);
    } else message = typeof error === 'string' ? error : formatText('%o', error);
  } catch {
    // A getter of the tenant's threw; what was read so far stands.
  }
  return {
    name: apply(slice, name, [0, 200]),
    message: apply(slice, message, [0, maxErrorLength]),
  };
}

function catchUncaught(): void {
  globalThis.addEventListener('error', (event) => {
    event.preventDefault();
    current?.fail((event as ErrorEvent).error);
  });
  globalThis.addEventListener('unhandledrejection', (event) => {
    event.preventDefault();
    current?.fail((event as PromiseRejectionEvent).reason);
  });
}

captureOutput();
ownTimers();
catchUncaught();
send({ type: 'ready' });
await listen();
