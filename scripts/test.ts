// `npm test`: everything there is. Checks first, then what the tests need from Debian, then all
// tests. Arguments go to vitest (`npm test -- test/conformance`).
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startVitest } from 'vitest/node';
import { runChecks } from './check.ts';
import { ensureTestTools } from './test-tools.ts';

const root = resolve(fileURLToPath(import.meta.url), '../..');
process.chdir(root);

const filters = process.argv.slice(2);
if (filters.length === 0 && !runChecks()) {
  console.error('checks failed');
  process.exit(1);
}
ensureTestTools();

const vitest = await startVitest('test', filters, { watch: false, run: true });
const tests = vitest.state
  .getFiles()
  .flatMap((file) => [...collect(file.tasks)])
  .map((test) => test.result?.state ?? 'skip');
const failedFiles = vitest.state.getFiles().filter((file) => file.result?.state === 'fail').length;
await vitest.close();

const count = (state: string) => tests.filter((each) => each === state).length;
// A file that cannot even be loaded has no failed test, but it has failed.
const failed = Math.max(count('fail'), failedFiles > 0 ? 1 : 0);
console.log(`${count('pass')} passed, ${failed} failed`);
process.exit(failed > 0 || count('pass') === 0 ? 1 : 0);

interface Task {
  type: string;
  tasks?: Task[];
  result?: { state?: string };
}

function* collect(tasks: Task[]): Generator<Task> {
  for (const task of tasks) {
    if (task.tasks) yield* collect(task.tasks);
    else if (task.type === 'test') yield task;
  }
}
