/** Lets a limited number of holders in at once, in the order they came. */
export interface SessionGate {
  /** Resolves with how to leave again; rejects when `signal` is aborted first. */
  enter(signal: AbortSignal): Promise<() => void>;
  readonly isEmpty: boolean;
}

export function createSessionGate(limit: number): SessionGate {
  const waiting: (() => void)[] = [];
  let inside = 0;

  function leaveOnce(): () => void {
    let left = false;
    return () => {
      if (left) return;
      left = true;
      inside--;
      waiting.shift()?.();
    };
  }

  return {
    get isEmpty() {
      return inside === 0 && waiting.length === 0;
    },
    enter(signal) {
      return new Promise((resolve, reject) => {
        if (signal.aborted) return reject(new Error('the run has ended'));
        const admit = () => {
          signal.removeEventListener('abort', giveUp);
          inside++;
          resolve(leaveOnce());
        };
        const giveUp = () => {
          waiting.splice(waiting.indexOf(admit), 1);
          reject(new Error('the run has ended'));
        };
        if (inside < limit) return admit();
        signal.addEventListener('abort', giveUp, { once: true });
        waiting.push(admit);
      });
    },
  };
}
