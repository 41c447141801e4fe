import { type DestinationStream, type Logger, pino } from 'pino';

export type { Logger };

/** Structured logs. Values under these names never reach a line, wherever they appear. */
const secretFields = [
  'authorization',
  'apikey',
  'password',
  'admin_password',
  'secret',
  'anonymous_secret',
  'token',
  'id_token',
  'connect_key',
  'value',
];

/** JSON lines, or lines for a person when a person is watching. */
export function createLogger(level: string, { human = false } = {}): Logger {
  const output = pino.destination({ dest: 2, sync: human });
  return pino(
    {
      level,
      base: null,
      redact: {
        paths: secretFields.flatMap((field) => [field, `*.${field}`, `*.*.${field}`]),
        censor: '[redacted]',
      },
    },
    human ? humanLines(output) : output,
  );
}

function humanLines(output: DestinationStream): DestinationStream {
  return {
    write(line) {
      const { level, time: _time, msg, err, durationMs, ...rest } = JSON.parse(line);
      const label = level >= 50 ? 'error: ' : level >= 40 ? 'warning: ' : '';
      const took = durationMs === undefined ? '' : ` (${(durationMs / 1000).toFixed(1)} s)`;
      const details = Object.keys(rest).length === 0 ? '' : ` ${JSON.stringify(rest)}`;
      const cause = err === undefined ? '' : `\n${err.stack ?? err.message}`;
      output.write(`${label}${msg ?? ''}${took}${details}${cause}\n`);
    },
  };
}
