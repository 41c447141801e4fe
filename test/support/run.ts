// Runs a program of the system, as a user would on the command line.
import { spawn } from 'node:child_process';

export interface Finished {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface RunOptions {
  env?: Record<string, string>;
  input?: string;
  /** Called with what has been written to standard output and error so far. */
  onOutput?(output: string, interrupt: () => void): void;
  timeoutMs?: number;
}

export function run(
  command: string,
  args: readonly string[],
  options: RunOptions = {},
): Promise<Finished> {
  return new Promise((done, fail) => {
    const child = spawn(command, args, {
      env: { ...process.env, ...options.env },
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    const timer = setTimeout(() => child.kill('SIGKILL'), options.timeoutMs ?? 60_000);
    let stdout = '';
    let stderr = '';
    const heard = () => options.onOutput?.(stdout + stderr, () => child.kill('SIGINT'));
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
      heard();
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
      heard();
    });
    child.once('error', (error) => {
      clearTimeout(timer);
      fail(error);
    });
    child.once('close', (code) => {
      clearTimeout(timer);
      done({ code, stdout, stderr });
    });
    child.stdin.on('error', () => {});
    child.stdin.end(options.input ?? '');
  });
}
