// Ends calls from outside: when a statement takes too long, or when its client goes away. A cancel
// request comes first; a session that does not stop for it is terminated.
import type { Backend } from './backend.ts';

/** Why a call was stopped; its errors then mean nothing to the customer. */
export type StopReason = 'timeout' | 'client_gone';

export interface Guard {
  readonly stopReason: StopReason | undefined;
  /** The session must not be used again. */
  isDirty: boolean;
  /** A statement ended: the next one has its own time. */
  restartClock(): void;
  release(): void;
}

export interface Guards {
  watch(what: {
    backend: Backend;
    isCallerGone: (() => boolean) | undefined;
    /** Ends the session with force. */
    terminate(): Promise<void>;
  }): Guard;
  /** Cuts every session that is watched. */
  close(): void;
}

/** After a cancel request, how long the server may take. */
const cancelGraceMs = 3_000;
/** One look at all calls costs less than a timer and a signal a call. */
const checkEveryMs = 250;

export function createGuards(statementTimeoutMs: number): Guards {
  // Not a Set: one that changes with every call leaves a chain of old tables behind, and with them
  // everything those calls had, until the next full collection.
  const watched: CallGuard[] = [];
  let timer: NodeJS.Timeout | undefined;

  function check(): void {
    const now = performance.now();
    for (const guard of watched) guard.check(now, statementTimeoutMs);
    if (watched.length === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  }

  return {
    watch({ backend, isCallerGone, terminate }) {
      const guard = new CallGuard(backend, isCallerGone, terminate, watched);
      guard.index = watched.push(guard) - 1;
      timer ??= setInterval(check, checkEveryMs).unref();
      return guard;
    },
    close() {
      clearInterval(timer);
      for (const guard of watched) guard.backend.destroy();
    },
  };
}

class CallGuard implements Guard {
  stopReason: StopReason | undefined;
  isDirty = false;
  readonly backend: Backend;
  readonly #isCallerGone: (() => boolean) | undefined;
  readonly #terminate: () => Promise<void>;
  readonly #watched: CallGuard[];
  /** Its place among the watched. */
  index = 0;
  #startedMs = performance.now();
  #stoppedMs = 0;
  #isTerminating = false;

  constructor(
    backend: Backend,
    isCallerGone: (() => boolean) | undefined,
    terminate: () => Promise<void>,
    watched: CallGuard[],
  ) {
    this.backend = backend;
    this.#isCallerGone = isCallerGone;
    this.#terminate = terminate;
    this.#watched = watched;
  }

  restartClock(): void {
    this.#startedMs = performance.now();
  }

  check(nowMs: number, limitMs: number): void {
    if (!this.stopReason) {
      if (nowMs - this.#startedMs > limitMs) this.#stop('timeout');
      else if (this.#isCallerGone?.()) this.#stop('client_gone');
    } else if (nowMs - this.#stoppedMs > cancelGraceMs && !this.#isTerminating) {
      this.#isTerminating = true;
      this.#terminate()
        .catch(() => {})
        .finally(() => this.backend.destroy());
    }
  }

  release(): void {
    const last = this.#watched.pop()!;
    if (last === this) return;
    this.#watched[this.index] = last;
    last.index = this.index;
  }

  #stop(reason: StopReason): void {
    this.stopReason = reason;
    this.#stoppedMs = performance.now();
    this.backend.cancel();
  }
}
