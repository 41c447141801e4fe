// Tables: on the terminal, in bench/results/*.json and between the markers of bench/README.md.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type BenchCase, isMet, type Row } from './harness.ts';

const benchDirectory = resolve(fileURLToPath(import.meta.url), '../..');

export function report(benchCase: BenchCase, rows: Row[], options: { write: boolean }): void {
  const table = markdown(rows);
  console.log(`\n${benchCase.name}: ${benchCase.about}\n\n${table}\n`);
  if (!options.write) return;
  mkdirSync(join(benchDirectory, 'results'), { recursive: true });
  const machine = `${cpus().length} cores (${process.arch}), ${Math.round(totalmem() / 2 ** 30)} GiB, Node ${process.version}`;
  const date = new Date().toISOString().slice(0, 10);
  writeFileSync(
    join(benchDirectory, 'results', `${benchCase.name}.json`),
    `${JSON.stringify({ case: benchCase.name, date, machine, rows }, null, 2)}\n`,
  );
  fillReadme(benchCase, `${table}\n\n${date}, ${machine}.`);
}

function fillReadme(benchCase: BenchCase, content: string): void {
  const file = join(benchDirectory, 'README.md');
  const text = readFileSync(file, 'utf8');
  const begin = `<!-- ${benchCase.name} -->`;
  const end = `<!-- end of ${benchCase.name} -->`;
  const section = `${begin}\n### ${benchCase.name}\n\n${benchCase.about}\n\n${content}\n${end}`;
  const from = text.indexOf(begin);
  const to = text.indexOf(end);
  writeFileSync(
    file,
    from >= 0 && to > from
      ? text.slice(0, from) + section + text.slice(to + end.length)
      : `${text.trimEnd()}\n\n${section}\n`,
  );
}

function markdown(rows: Row[]): string {
  const columns = ['', 'p50 ms', 'p99 ms', 'per second', 'memory MB', 'target', 'met', ''];
  const lines = rows.map((row) => [
    row.what,
    number(row.p50),
    number(row.p99),
    number(row.perSecond),
    number(row.memory),
    row.target ? `${row.target.of} = ${number(row.target.value)} (${limit(row)})` : '',
    row.target ? (isMet(row.target) ? 'yes' : '**no**') : '',
    row.note ?? '',
  ]);
  const used = columns.map((_, i) => i === 0 || lines.some((line) => line[i] !== ''));
  const render = (cells: string[]) => `| ${cells.filter((_, i) => used[i]).join(' | ')} |`;
  return [render(columns), render(columns.map(() => '---')), ...lines.map(render)].join('\n');
}

function limit({ target }: Row): string {
  return target?.atMost === undefined
    ? `at least ${number(target?.atLeast)}`
    : `at most ${number(target.atMost)}`;
}

function number(value: number | undefined): string {
  if (value === undefined) return '';
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString('en');
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}
