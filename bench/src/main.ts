// `npm run bench`, or `npm run bench -- me create --quick`.
import { parseArgs } from 'node:util';
import { cases } from './cases/index.ts';
import { isMet } from './harness.ts';
import { report } from './report.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { quick: { type: 'boolean', default: false } },
});
const unknown = positionals.filter((name) => !cases.some((each) => each.name === name));
if (unknown.length > 0) {
  console.error(
    `no such case: ${unknown.join(', ')}; there are ${cases.map((c) => c.name).join(', ')}`,
  );
  process.exit(2);
}
const chosen =
  positionals.length === 0 ? cases : cases.filter(({ name }) => positionals.includes(name));

let missed = 0;
for (const [index, benchCase] of chosen.entries()) {
  const heading = `[${index + 1}/${chosen.length}] ${benchCase.name}`;
  const progress = (message: string) => {
    if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${heading} ${message}`);
  };
  progress('…');
  const rows = await benchCase.run({ quick: values.quick, progress });
  if (process.stderr.isTTY) process.stderr.write('\r\x1b[K');
  report(benchCase, rows, { write: !values.quick });
  missed += rows.filter((row) => row.target && !isMet(row.target)).length;
}
console.log(missed === 0 ? 'All targets met.' : `${missed} targets missed.`);
process.exit(0);
