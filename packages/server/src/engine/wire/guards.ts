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
    signal: AbortSignal | undefined;
    /** Ends the session with force. */
    terminate(): Promise<void>;
  }): Guard;
  /** Cuts every session that is watched. */
  close(): void;
}

/** After a cancel request, how long the server may take. */
const cancelGraceMs = 3_000;
/** One look at all clocks costs less than a timer a call. */
const checkEveryMs = 250;

export function createGuards(statementTimeoutMs: number): Guards {
  const watched = new Set<CallGuard>();
  let timer: NodeJS.Timeout | undefined;

  function check(): void {
    const now = performance.now();
    for (const guard of watched) guard.check(now, statementTimeoutMs);
    if (watched.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  }

  return {
    watch({ backend, signal, terminate }) {
      const guard = new CallGuard(backend, signal, terminate, watched);
      watched.add(guard);
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
  readonly #terminate: () => Promise<void>;
  readonly #watched: Set<CallGuard>;
  #startedMs = performance.now();
  #stoppedMs = 0;
  #isTerminating = false;
  #isReleased = false;

  constructor(
    backend: Backend,
    signal: AbortSignal | undefined,
    terminate: () => Promise<void>,
    watched: Set<CallGuard>,
  ) {
    this.backend = backend;
    this.#terminate = terminate;
    this.#watched = watched;
    if (signal?.aborted) this.#onAbort();
    else signal?.addEventListener('abort', this.#onAbort);
  }

  restartClock(): void {
    this.#startedMs = performance.now();
  }

  check(nowMs: number, limitMs: number): void {
    if (!this.stopReason) {
      if (nowMs - this.#startedMs > limitMs) this.#stop('timeout');
    } else if (nowMs - this.#stoppedMs > cancelGraceMs && !this.#isTerminating) {
      this.#isTerminating = true;
      this.#terminate()
        .catch(() => {})
        .finally(() => this.backend.destroy());
    }
  }

  release(): void {
    this.#watched.delete(this);
    this.#isReleased = true;
  }

  /** The signal dies with its call, and this listener with it: taking it off would cost more. */
  readonly #onAbort = (): void => this.#stop('client_gone');

  #stop(reason: StopReason): void {
    // After the call the session belongs to somebody else.
    if (this.stopReason || this.#isReleased) return;
    this.stopReason = reason;
    this.#stoppedMs = performance.now();
    this.backend.cancel();
  }
}
