import type { Clock } from '../kernel/clock.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Releasers } from '../kernel/releasers.ts';

/** What every part of the composition is handed. */
export interface Basics {
  clock: Clock;
  logger: Logger;
  /** Whatever is acquired pushes one; stopping runs them in reverse. */
  releasers: Releasers;
  /** Told, in words for a person, what takes long. */
  progress(message: string): void;
}
