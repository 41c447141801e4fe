// What observability costs a statement: the very code of both doors, timed alone. At a throughput of
// n a second on one thread, n times this is the share of it that recording takes at most.
import { QueryMeter } from '../../packages/server/src/edge/gateway/query-meter.ts';
import { createRecorder } from '../../packages/server/src/features/observability/recorder.ts';
import type { Row } from './harness.ts';

const statements = 200_000;
const idleNormalizer = { normalize() {}, settled: async () => {}, close() {} };

/** `/sql`: every call is recorded with its text, here one in a hundred a new one. */
export function recordingMicros(): number {
  const recorder = createRecorder(idleNormalizer);
  const micros = timeEach((n) => {
    recorder.query(`db_${n % 10}`, (n % 97) / 10, false, `select ${n % 2_000} as n`);
  });
  recorder.close();
  return micros;
}

/** The gateway: messages are followed in its thread, what ended is recorded in the main one. */
export function meteringMicros(): number {
  const text = 'SELECT abalance FROM pgbench_accounts WHERE aid = 123456;\0';
  const question = message('Q', Buffer.from(text));
  const answer = Buffer.concat([
    message('T', Buffer.alloc(30)),
    message('D', Buffer.alloc(12)),
    message('C', Buffer.from('SELECT 1\0')),
    message('Z', Buffer.from('I')),
  ]);
  let ended = 0;
  const meter = new QueryMeter(() => {
    ended++;
  });
  const micros = timeEach(() => {
    meter.fromClient(question, question.length);
    meter.fromServer(answer, answer.length);
  });
  if (ended === 0) throw new Error('the meter saw nothing');
  return micros;
}

export const recordingRow = (what: string, micros: number, perSecond: number): Row => ({
  what,
  note: `${micros.toFixed(2)} µs a statement`,
  target: { of: 'share of the throughput', value: (micros * perSecond) / 1e6, atMost: 0.02 },
});

function timeEach(work: (n: number) => void): number {
  for (let n = 0; n < statements / 10; n++) work(n);
  const startedAt = performance.now();
  for (let n = 0; n < statements; n++) work(n);
  return ((performance.now() - startedAt) * 1000) / statements;
}

function message(type: string, body: Buffer): Buffer {
  const head = Buffer.alloc(5);
  head.write(type, 0, 'latin1');
  head.writeInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
}
