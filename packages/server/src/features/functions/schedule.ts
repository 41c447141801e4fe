// Cron expressions: five fields, or six with seconds first; UTC.
import { Cron } from 'croner';
import { unprocessable } from '../../kernel/app-error.ts';

/** The first tick after `from`; undefined when there is none. Throws on what is not a schedule. */
function parse(expression: string, from: Date): Date | undefined {
  const fields = expression.trim().split(/\s+/);
  if (fields.length !== 5 && fields.length !== 6) throw new Error('it must have 5 or 6 fields');
  const cron = new Cron(fields.join(' '), { timezone: 'UTC', paused: true });
  return cron.nextRun(from) ?? undefined;
}

export function nextTickAfter(expression: string, from: Date): Date | undefined {
  try {
    return parse(expression, from);
  } catch {
    return undefined;
  }
}

/** Throws a 422 that says what is wrong. */
export function checkSchedule(expression: string, now: Date): Date {
  let next: Date | undefined;
  try {
    next = parse(expression, now);
  } catch (error) {
    throw unprocessable(`invalid cron_schedule: ${(error as Error).message}`);
  }
  if (!next) throw unprocessable('invalid cron_schedule: it never comes round');
  return next;
}
