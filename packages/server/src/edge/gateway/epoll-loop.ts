// The thread that moves the bytes of unencrypted connections. It owns their descriptors and runs one
// epoll loop over all of them, with system calls of its own: at 32 clients that costs a third of the
// processor time of Node's streams, and the main thread stays free for everything else.
//
// The thread never returns to its event loop. Messages of the main thread are fetched when the event
// descriptor says so; `epoll_wait` comes back at least once a second, so that the process can end.
import { type MessagePort, receiveMessageOnPort, workerData } from 'node:worker_threads';
import type { FromLoop, ToLoop } from './epoll-messages.ts';
import {
  again,
  closeOnExec,
  epollAdd,
  epollDelete,
  epollEvent,
  epollIn,
  epollModify,
  epollOut,
  interrupted,
  type Libc,
  loadLibc,
  receiveFlags,
  sendFlags,
} from './libc.ts';
import { QueryMeter } from './query-meter.ts';

// A global is looked up anew at each use.
const clock = performance;

const bufferBytes = 128 * 1024;
const maxEvents = 256;
const tickMs = 1_000;
const reportMs = 200;
/** Statements of one database that are reported with their text between two reports. */
const textsAReport = 50;
/** Slower ones always are. */
const slowMs = 50;
/** Buffers for bytes that wait, kept for the next time. */
const maxSpare = 64;
const newBuffer = (length: number) => Buffer.allocUnsafeSlow(length);
/** How long a client may take to read what is left for it. */
const lastWordsMs = 30_000;

interface Unsent {
  /** Borrowed from the loop, which lends them again and again. */
  buffer: Buffer;
  from: number;
  to: number;
}

/** One end of a connection: what is read here goes to `peer`. */
class End {
  readonly fd: number;
  readonly pair: Pair;
  readonly isClient: boolean;
  peer!: End;
  /** Bytes for this end that its socket had no room for; its peer is not read meanwhile. */
  unsent: Unsent | undefined;
  /** It takes no more bytes; what it said before is still to be read. */
  isDeaf = false;
  interest = 0;

  constructor(fd: number, pair: Pair, isClient: boolean) {
    this.fd = fd;
    this.pair = pair;
    this.isClient = isClient;
  }
}

class Pair {
  readonly id: number;
  readonly client: End;
  readonly server: End;
  readonly meter: QueryMeter;
  readonly idleTimeoutMs: number;
  readonly idleFarewell: Buffer;
  lastActiveMs = 0;
  /** Set when the server is gone and the client is only to read the rest. */
  endsAtMs = 0;

  constructor(message: Extract<ToLoop, { kind: 'splice' }>, reports: Reports) {
    this.id = message.id;
    this.client = new End(message.clientFd, this, true);
    this.server = new End(message.serverFd, this, false);
    this.client.peer = this.server;
    this.server.peer = this.client;
    this.meter = new QueryMeter((durationMs, failed, text) =>
      reports.add(message.id, message.databaseId, durationMs, failed, text),
    );
    this.idleTimeoutMs = message.idleTimeoutMs;
    this.idleFarewell = Buffer.from(message.idleFarewell);
  }
}

const emptyBatch = (): Extract<FromLoop, { kind: 'queries' }> => ({
  kind: 'queries',
  ids: [],
  durationsMs: [],
  failed: [],
  texts: [],
});

/** Gathers what the meters say, to be sent in one message. */
class Reports {
  private readonly post: (message: FromLoop) => void;
  private readonly texts = new Map<string, number>();
  private batch = emptyBatch();

  constructor(post: (message: FromLoop) => void) {
    this.post = post;
  }

  get isEmpty(): boolean {
    return this.batch.ids.length === 0;
  }

  add(
    id: number,
    databaseId: string,
    durationMs: number,
    failed: boolean,
    text: string | undefined,
  ): void {
    const { batch } = this;
    batch.ids.push(id);
    batch.durationsMs.push(durationMs);
    batch.failed.push(failed);
    const sampled = this.texts.get(databaseId) ?? 0;
    const withText = text !== undefined && (sampled < textsAReport || durationMs >= slowMs);
    batch.texts.push(withText ? text : undefined);
    if (withText) this.texts.set(databaseId, sampled + 1);
  }

  flush(): void {
    if (this.isEmpty) return;
    this.post(this.batch);
    this.batch = emptyBatch();
    this.texts.clear();
  }
}

function run(port: MessagePort, wakeFd: number, libc: Libc): void {
  const epoll = libc.epollCreate(closeOnExec);
  const ends = new Map<number, End>();
  const pairs = new Map<number, Pair>();
  const bytes = newBuffer(bufferBytes);
  const spare: Buffer[] = [];
  const event = Buffer.alloc(epollEvent.bytes);
  const post = (message: FromLoop) => port.postMessage(message);
  const reports = new Reports(post);
  let stopped = false;

  function watch(fd: number, interest: number, operation: number): void {
    event.writeUInt32LE(interest, 0);
    event.writeInt32LE(fd, epollEvent.dataAt);
    libc.epollControl(epoll, operation, fd, event);
  }
  /** Nothing wanted means not watched at all: a hang-up would be reported without end. */
  function setInterest(end: End, interest: number): void {
    if (end.interest === interest || !isOpen(end)) return;
    if (end.interest === 0) watch(end.fd, interest, epollAdd);
    else watch(end.fd, interest, interest === 0 ? epollDelete : epollModify);
    end.interest = interest;
  }
  /** Read an end unless its peer still has bytes to take; write it if it has some itself. */
  function settleInterest(pair: Pair): void {
    for (const end of [pair.client, pair.server])
      setInterest(end, (end.peer.unsent ? 0 : epollIn) | (end.unsent ? epollOut : 0));
  }
  /** Numbers of descriptors are used again, by other connections. */
  const isOpen = (end: End) => ends.get(end.fd) === end;
  const mayRetry = () => libc.errno() === again || libc.errno() === interrupted;

  function begin(message: Extract<ToLoop, { kind: 'splice' }>): void {
    const pair = new Pair(message, reports);
    pair.lastActiveMs = clock.now();
    pairs.set(pair.id, pair);
    for (const end of [pair.client, pair.server]) {
      ends.set(end.fd, end);
      setInterest(end, epollIn);
    }
    deliver(pair.client, Buffer.from(message.clientRest), message.clientRest.length);
    deliver(pair.server, Buffer.from(message.serverRest), message.serverRest.length);
  }

  /** `length` bytes that came from `from` go to its peer. */
  function deliver(from: End, source: Buffer, length: number): void {
    const { pair, peer } = from;
    if (length === 0 || peer.isDeaf) return;
    if (from.isClient) pair.meter.fromClient(source, length);
    else pair.meter.fromServer(source, length);
    const sent = libc.send(peer.fd, source, length, sendFlags);
    if (sent === length) return;
    if (sent < 0 && !mayRetry()) deafen(peer);
    else {
      keep(peer, source, Math.max(sent, 0), length);
      settleInterest(pair);
    }
  }

  /** This thread's garbage is collected late, since its event loop stands still: lend, do not make. */
  function keep(end: End, source: Buffer, from: number, length: number): void {
    const fits = length - from <= bufferBytes;
    const buffer =
      (fits ? spare.pop() : undefined) ?? newBuffer(Math.max(length - from, bufferBytes));
    source.copy(buffer, 0, from, length);
    end.unsent = { buffer, from: 0, to: length - from };
  }
  function drop(end: End): void {
    const buffer = end.unsent?.buffer;
    if (buffer?.length === bufferBytes && spare.length < maxSpare) spare.push(buffer);
    end.unsent = undefined;
  }

  function readable(end: End): void {
    const length = libc.receive(end.fd, bytes, bufferBytes, receiveFlags);
    if (length > 0) {
      end.pair.lastActiveMs = nowMs;
      deliver(end, bytes, length);
    } else if (length === 0 || !mayRetry()) lose(end);
  }

  function writable(end: End): void {
    const unsent = end.unsent!;
    const left = unsent.buffer.subarray(unsent.from, unsent.to);
    const sent = libc.send(end.fd, left, left.length, sendFlags);
    if (sent < 0) {
      if (!mayRetry()) deafen(end);
      return;
    }
    end.pair.lastActiveMs = nowMs;
    unsent.from += sent;
    if (unsent.from < unsent.to) return;
    drop(end);
    if (end.pair.endsAtMs > 0) finish(end.pair);
    else settleInterest(end.pair);
  }

  /** An end takes no more bytes. The last words of a server are still read; a client has none. */
  function deafen(end: End): void {
    if (end.isClient) finish(end.pair);
    else {
      end.isDeaf = true;
      drop(end);
      settleInterest(end.pair);
    }
  }

  /** An end is gone. A client still gets what its server said last. */
  function lose(end: End): void {
    const { pair } = end;
    if (end.isClient || !pair.client.unsent) finish(pair);
    else {
      closeEnd(pair.server);
      pair.endsAtMs = nowMs + lastWordsMs;
      setInterest(pair.client, epollOut);
    }
  }

  function closeEnd(end: End): void {
    if (!isOpen(end)) return;
    ends.delete(end.fd);
    libc.close(end.fd);
    drop(end);
  }

  function finish(pair: Pair, farewell?: Buffer): void {
    if (!pairs.delete(pair.id)) return;
    const { client, meter } = pair;
    if (farewell && !client.unsent && meter.isServerAtBoundary)
      libc.send(client.fd, farewell, farewell.length, sendFlags);
    closeEnd(pair.client);
    closeEnd(pair.server);
    post({ kind: 'ended', id: pair.id, leftBusy: meter.isBusy && !meter.isTerminated });
  }

  function obey(): void {
    libc.read(wakeFd, event, 8);
    for (let next = receiveMessageOnPort(port); next; next = receiveMessageOnPort(port)) {
      const message = next.message as ToLoop;
      if (message.kind === 'splice') begin(message);
      else if (message.kind === 'stop') stopped = true;
      else {
        const pair = pairs.get(message.id);
        if (pair) finish(pair, Buffer.from(message.farewell));
      }
    }
  }

  function tick(): void {
    for (const pair of pairs.values()) {
      const idle = nowMs - pair.lastActiveMs;
      if (pair.endsAtMs > 0 && nowMs > pair.endsAtMs) finish(pair);
      else if (pair.idleTimeoutMs > 0 && idle > pair.idleTimeoutMs && !pair.meter.isBusy)
        finish(pair, pair.idleFarewell);
    }
  }

  const events = Buffer.alloc(maxEvents * epollEvent.bytes);
  let nowMs = clock.now();
  let tickAtMs = nowMs + tickMs;
  let reportAtMs = nowMs + reportMs;
  watch(wakeFd, epollIn, epollAdd);
  while (!stopped) {
    const count = libc.epollWait(epoll, events, maxEvents, reports.isEmpty ? tickMs : reportMs);
    nowMs = clock.now();
    for (let i = 0; i < count; i++) {
      const at = i * epollEvent.bytes;
      const fd = events.readInt32LE(at + epollEvent.dataAt);
      if (fd === wakeFd) {
        obey();
        continue;
      }
      const happened = events.readUInt32LE(at);
      // An earlier event of this round may have closed it. Whatever else there is to an event (an
      // error, a hang-up) shows in the call that it makes possible.
      const end = ends.get(fd);
      if (end?.unsent && happened & ~epollIn) writable(end);
      if (end && end.interest & epollIn && happened & ~epollOut && isOpen(end)) readable(end);
    }
    if (nowMs >= reportAtMs) {
      reports.flush();
      reportAtMs = nowMs + reportMs;
    }
    if (nowMs >= tickAtMs) {
      tick();
      tickAtMs = nowMs + tickMs;
    }
  }
  for (const pair of pairs.values()) finish(pair);
  reports.flush();
  libc.close(epoll);
}

const { port, wakeFd } = workerData as { port: MessagePort; wakeFd: number };
run(port, wakeFd, loadLibc());
port.close();
