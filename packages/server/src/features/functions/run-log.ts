// What a run prints: `timestamp [LEVEL] message` lines, without the values of the secrets it was
// given, and bounded in size.
import type { Clock } from '../../kernel/clock.ts';
import type { Secret } from '../../kernel/secret.ts';

export interface RunLog {
  add(level: string, message: string): void;
  /** Takes secrets out of any text. */
  redact(text: string): string;
  text(): string;
}

const maxLength = 256 * 1024;
const mask = '[redacted]';

export function createRunLog(clock: Clock, secrets: Iterable<Secret>): RunLog {
  const forms = spellings(secrets);
  const lines: string[] = [];
  let length = 0;
  let full = false;

  const redact = (text: string) => {
    let clean = text;
    for (const form of forms) clean = clean.replaceAll(form, mask);
    return clean;
  };

  function push(line: string): void {
    if (full) return;
    length += line.length + 1;
    full = length > maxLength;
    lines.push(
      full
        ? `${stamp('WARN')} the log is longer than ${maxLength / 1024} KiB; the rest is left out`
        : line,
    );
  }
  const stamp = (level: string) => `${clock.now().toISOString()} [${level}]`;

  return {
    redact,
    add(level, message) {
      // Postgres keeps no NUL in text.
      for (const line of redact(message)
        .replaceAll('\0', '\\0')
        .replace(/\r?\n$/, '')
        .split(/\r?\n/))
        push(`${stamp(level)} ${line}`);
    },
    text: () => lines.join('\n'),
  };
}

/** A secret as it is, and as it looks inside JSON, URLs, base64 and line by line; longest first. */
function spellings(secrets: Iterable<Secret>): string[] {
  const forms = new Set<string>();
  for (const secret of secrets) {
    const value = secret.reveal();
    const base64 = Buffer.from(value).toString('base64');
    // A single character is no secret, and would take the log apart.
    for (const form of [
      value,
      JSON.stringify(value).slice(1, -1),
      encodeURIComponent(value),
      ...(value.length >= 6 ? [base64, base64.replace(/=+$/, '')] : []),
      ...value.split(/\r?\n/).filter((line) => line.length >= 8),
    ])
      if (form.length >= 2) forms.add(form);
  }
  return [...forms].sort((a, b) => b.length - a.length);
}
