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

export function createLogger(level: string, destination?: DestinationStream): Logger {
  return pino(
    {
      level,
      base: null,
      redact: {
        paths: secretFields.flatMap((field) => [field, `*.${field}`, `*.*.${field}`]),
        censor: '[redacted]',
      },
    },
    destination ?? pino.destination({ dest: 2, sync: false }),
  );
}
