// How long statements take, by reading no more of the traffic than the headers of its messages (and
// the text of statements, as far as it lies in the piece at hand). It never changes a byte: traffic
// that it does not understand goes through all the same, unmeasured.
//
// A unit is what ends with ReadyForQuery: one simple query, one function call, or the extended
// messages up to a Sync. Units of a pipeline wait in line; each is timed from the moment it was sent
// or its predecessor ended, whichever is later.

// A global is looked up anew at each use; this one is used for every message.
const clock = performance;
const monotonicMs = () => clock.now();

/** One unit that ended. */
export type OnQuery = (durationMs: number, failed: boolean, text: string | undefined) => void;

const type = (letter: string) => letter.charCodeAt(0);
const query = type('Q');
const parse = type('P');
const bind = type('B');
const execute = type('E');
const sync = type('S');
const functionCall = type('F');
const close = type('C');
const terminate = type('X');
const errorResponse = type('E');
const readyForQuery = type('Z');

const maxTextBytes = 4096;
/** Named statements whose text is remembered, a connection. */
const maxStatements = 200;
/** A client that floods without reading answers is not followed further than this. */
const maxWaiting = 10_000;

/** Walks over the messages of one direction, whose pieces end anywhere. */
class Walker {
  /** Bytes of the current message that have not come yet. */
  private missing = 0;
  private readonly header = Buffer.alloc(5);
  private headerLength = 0;
  private lost = false;
  private readonly onMessage: (type: number, bytes: Buffer, from: number, to: number) => void;

  constructor(onMessage: (type: number, bytes: Buffer, from: number, to: number) => void) {
    this.onMessage = onMessage;
  }

  /** True between two messages: only there may another message be slipped in. */
  get isAtBoundary(): boolean {
    return this.missing === 0 && this.headerLength === 0 && !this.lost;
  }

  walk(bytes: Buffer, length: number): void {
    let at = 0;
    while (at < length && !this.lost) {
      if (this.missing > 0) {
        const step = Math.min(this.missing, length - at);
        this.missing -= step;
        at += step;
      } else if (this.headerLength > 0 || length - at < 5) {
        this.header[this.headerLength++] = bytes[at++]!;
        if (this.headerLength < 5) continue;
        this.headerLength = 0;
        this.begin(this.header[0]!, lengthAt(this.header, 1), bytes, at, length);
      } else {
        this.begin(bytes[at]!, lengthAt(bytes, at + 1), bytes, at + 5, length);
        at += 5;
      }
    }
  }

  private begin(kind: number, messageLength: number, bytes: Buffer, from: number, to: number) {
    if (messageLength < 4) this.lost = true;
    else {
      this.missing = messageLength - 4;
      this.onMessage(kind, bytes, from, Math.min(from + this.missing, to));
    }
  }
}

const lengthAt = (bytes: Buffer, at: number) =>
  (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;

interface Unit {
  /** Something is executed; a unit that only prepares is waited for, not reported. */
  counts: boolean;
  text: string | undefined;
  sentAt: number;
}

export class QueryMeter {
  /** The client said goodbye: an end from now on is not abrupt. */
  isTerminated = false;

  private readonly onQuery: OnQuery;
  private readonly now: () => number;
  /** The oldest unit without an answer, and those behind it. */
  private current: Unit | undefined;
  private readonly waiting: Unit[] = [];
  private lastEndAt = 0;
  private failed = false;
  private hasUnsynced = false;
  private hasExecuted = false;
  private unsyncedText: string | undefined;
  private readonly statements = new Map<string, string>();
  private readonly client = new Walker((kind, bytes, from, to) =>
    this.clientMessage(kind, bytes, from, to),
  );
  private readonly server = new Walker((kind) => this.serverMessage(kind));

  constructor(onQuery: OnQuery, now: () => number = monotonicMs) {
    this.onQuery = onQuery;
    this.now = now;
  }

  fromClient(bytes: Buffer, length: number): void {
    this.client.walk(bytes, length);
  }

  fromServer(bytes: Buffer, length: number): void {
    this.server.walk(bytes, length);
  }

  /** The server owes an answer. */
  get isBusy(): boolean {
    return this.current !== undefined || this.hasUnsynced;
  }

  /** Whether a message of ours may follow what the client has been sent so far. */
  get isServerAtBoundary(): boolean {
    return this.server.isAtBoundary;
  }

  private clientMessage(kind: number, bytes: Buffer, from: number, to: number): void {
    switch (kind) {
      case query:
        this.send(true, bytes.toString('utf8', from, Math.min(to - 1, from + maxTextBytes)));
        break;
      case functionCall:
        this.send(true, undefined);
        break;
      case sync:
        this.send(this.hasExecuted, this.unsyncedText);
        break;
      case parse: {
        const name = textAt(bytes, from, to);
        this.hasUnsynced = true;
        this.unsyncedText = textAt(bytes, from + Buffer.byteLength(name) + 1, to);
        this.remember(name, this.unsyncedText);
        break;
      }
      case bind: {
        this.hasUnsynced = true;
        const portalEnd = bytes.indexOf(0, from);
        if (portalEnd !== -1 && portalEnd < to)
          this.unsyncedText = this.statements.get(textAt(bytes, portalEnd + 1, to));
        break;
      }
      case execute:
        this.hasUnsynced = true;
        this.hasExecuted = true;
        break;
      case close:
        this.hasUnsynced = true;
        break;
      case terminate:
        this.isTerminated = true;
    }
  }

  private remember(name: string, text: string): void {
    if (this.statements.size >= maxStatements && !this.statements.has(name))
      this.statements.delete(this.statements.keys().next().value!);
    this.statements.set(name, text);
  }

  private send(counts: boolean, text: string | undefined): void {
    this.hasUnsynced = false;
    this.hasExecuted = false;
    this.unsyncedText = undefined;
    const unit = { counts, text, sentAt: this.now() };
    if (!this.current) this.current = unit;
    else if (this.waiting.length < maxWaiting) this.waiting.push(unit);
  }

  private serverMessage(kind: number): void {
    if (kind === errorResponse) this.failed = true;
    else if (kind === readyForQuery && this.current) {
      const { counts, text, sentAt } = this.current;
      this.current = this.waiting.length > 0 ? this.waiting.shift() : undefined;
      const endAt = this.now();
      if (counts) this.onQuery(endAt - Math.max(sentAt, this.lastEndAt), this.failed, text);
      this.lastEndAt = endAt;
      this.failed = false;
    }
  }
}

/** The text that begins at `from`, up to its NUL, the end of the piece or the limit. */
function textAt(bytes: Buffer, from: number, to: number): string {
  if (from >= to) return '';
  const end = bytes.indexOf(0, from);
  const stop = end === -1 || end > to ? to : end;
  return bytes.toString('utf8', from, Math.min(stop, from + maxTextBytes));
}
