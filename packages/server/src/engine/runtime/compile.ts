// Makes one file of JavaScript out of a bundle, at deployment: what a sandbox then loads in
// milliseconds. Nothing outside the bundle is read, whatever its imports say.
//
// On disk: a temporary directory with the unpacked bundle, while it compiles.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { isBuiltin } from 'node:module';
import { tmpdir } from 'node:os';
import { join, relative, sep } from 'node:path';
import { type BuildOptions, type BuildResult, build, type Plugin } from 'esbuild';
import { ArchiveError, bundleKind, unpack } from './archive.ts';

/** The bundle is at fault; the message is for its author. */
export class CompileError extends Error {}

export interface CompiledBundle {
  code: Buffer;
  format: 'cjs' | 'esm';
}

const extensions = ['.ts', '.mts', '.cts', '.tsx', '.js', '.mjs', '.cjs', '.jsx'];
const maxCodeBytes = 32 * 1024 * 1024;
const maxErrors = 5;

/** `moduleName`: the part of the entrypoint before the handler. `isTypeScript`: as its name says. */
export async function compileBundle(
  bytes: Buffer,
  moduleName: string,
  isTypeScript: boolean,
): Promise<CompiledBundle> {
  const directory = await mkdtemp(join(tmpdir(), `coppice-build-${process.pid}-`));
  try {
    const kind = bundleKind(bytes);
    if (kind === 'module') return await compileModule(directory, bytes, isTypeScript);
    const names = await unpack(kind, bytes, directory);
    const entry = findEntry(names, moduleName);
    if (entry === undefined)
      throw new CompileError(
        `the bundle has no module ${moduleName} (looked for ${moduleName}.js, .mjs, .ts)`,
      );
    return await compileEntry(directory, entry);
  } catch (error) {
    if (error instanceof ArchiveError) throw new CompileError(error.message);
    throw error;
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

/** A single file may be either language; TypeScript is tried when it is not JavaScript. */
async function compileModule(directory: string, bytes: Buffer, isTypeScript: boolean) {
  await writeFile(join(directory, 'index.ts'), bytes);
  if (isTypeScript) return compileEntry(directory, 'index.ts');
  await writeFile(join(directory, 'index.js'), bytes);
  try {
    return await compileEntry(directory, 'index.js');
  } catch (error) {
    return compileEntry(directory, 'index.ts').catch(() => {
      throw error;
    });
  }
}

/** At the top of the archive, or in the one folder that holds everything. */
function findEntry(names: readonly string[], moduleName: string): string | undefined {
  const folders = new Set(names.map((name) => (name.includes('/') ? name.split('/')[0]! : '')));
  const prefixes = folders.size === 1 && !folders.has('') ? ['', `${[...folders][0]}/`] : [''];
  const wanted = moduleName.replace(/^\.\//, '');
  for (const prefix of prefixes)
    for (const suffix of [
      '',
      ...extensions,
      ...extensions.map((extension) => `/index${extension}`),
    ]) {
      const name = `${prefix}${wanted}${suffix}`;
      if (names.includes(name) && (suffix !== '' || extensions.some((e) => name.endsWith(e))))
        return name;
    }
  return undefined;
}

async function compileEntry(directory: string, entry: string): Promise<CompiledBundle> {
  const options: BuildOptions = {
    absWorkingDir: directory,
    entryPoints: [`./${entry}`],
    bundle: true,
    write: false,
    platform: 'node',
    target: 'esnext',
    charset: 'utf8',
    legalComments: 'none',
    logLevel: 'silent',
    logLimit: maxErrors,
    preserveSymlinks: true,
    // Given here, no tsconfig.json is looked for on disk.
    tsconfigRaw: {},
    loader: { '.wasm': 'binary', '.txt': 'text', '.md': 'text', '.html': 'text', '.sql': 'text' },
    plugins: [onlyFrom(directory)],
  };
  let format: CompiledBundle['format'] = 'cjs';
  let result: BuildResult;
  try {
    result = await build({ ...options, format });
  } catch (error) {
    if (!usesTopLevelAwait(error)) throw asCompileError(error);
    format = 'esm';
    result = await build({ ...options, format }).catch((failure) => {
      throw asCompileError(failure);
    });
  }
  const code = Buffer.from(result.outputFiles![0]!.contents);
  if (code.length > maxCodeBytes)
    throw new CompileError(`the code is larger than ${maxCodeBytes / 1024 / 1024} MiB`);
  return { code, format };
}

/** Lets imports lead to files of the bundle and to Node's own modules, nowhere else. */
function onlyFrom(directory: string): Plugin {
  return {
    name: 'only-from-the-bundle',
    setup(setup) {
      setup.onResolve(
        { filter: /.*/ },
        async ({ path, resolveDir, kind, importer, pluginData }) => {
          if (pluginData === 'asked') return undefined;
          if (/^(https?|data|npm|jsr|file):/.test(path))
            return {
              errors: [{ text: `${path.slice(0, 200)}: only files of the bundle can be imported` }],
            };
          const found = await setup.resolve(path, {
            resolveDir,
            kind,
            importer,
            pluginData: 'asked',
          });
          if (isBuiltin(path) && (found.errors.length > 0 || found.external))
            return { path: path.startsWith('node:') ? path : `node:${path}`, external: true };
          if (found.errors.length > 0)
            return { errors: [{ text: `${path.slice(0, 200)} is not in the bundle` }] };
          const inside = relative(directory, found.path);
          if (found.external || inside.startsWith('..') || inside.startsWith(sep))
            return { errors: [{ text: `${path.slice(0, 200)} is outside the bundle` }] };
          return { path: found.path, sideEffects: found.sideEffects };
        },
      );
    },
  };
}

interface BuildProblem {
  errors?: { text: string; location: { file: string; line: number } | null }[];
}

const usesTopLevelAwait = (error: unknown) =>
  ((error as BuildProblem).errors ?? []).some(({ text }) => text.includes('Top-level await'));

function asCompileError(error: unknown): Error {
  const { errors } = error as BuildProblem;
  if (!errors) return error as Error;
  const lines = errors
    .slice(0, maxErrors)
    .map(({ text, location }) => (location ? `${location.file}:${location.line}: ${text}` : text));
  return new CompileError(`the bundle cannot be compiled: ${lines.join('; ')}`);
}
