// Holds the arrows of docs/architecture.md: which folder may import which.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = resolve(fileURLToPath(import.meta.url), '../..');
const server = 'packages/server/src';

/** Folder → the folders and workspace packages it may import, besides itself and npm packages. */
const layers: Record<string, string[]> = {
  'packages/contract': [],
  'packages/functions': [],
  'packages/sdk': ['packages/contract'],
  [`${server}/kernel`]: ['packages/contract'],
  [`${server}/engine`]: [`${server}/kernel`],
  [`${server}/features`]: ['packages/contract', `${server}/engine`, `${server}/kernel`],
  [`${server}/edge`]: ['packages/contract', `${server}/kernel`],
  [`${server}/config.ts`]: [`${server}/kernel`],
  [`${server}/config.test.ts`]: [`${server}/config.ts`],
  [`${server}/compose.ts`]: ['packages/contract', server],
  [`${server}/compose`]: ['packages/contract', server],
  [`${server}/backups-command.ts`]: ['packages/contract', server],
  [`${server}/main.ts`]: ['packages/contract', server],
  test: ['packages/contract', 'packages/sdk', 'scripts'],
};
const workspaces: Record<string, string> = {
  '@coppice/contract': 'packages/contract',
  '@coppice/sdk': 'packages/sdk',
  '@coppice/functions': 'packages/functions',
  '@coppice/server': 'packages/server',
};

export function checkImports(): string[] {
  const problems: string[] = [];
  for (const file of [...sources('packages'), ...sources('test')]) {
    const layer = layerOf(file);
    if (!layer) {
      problems.push(`${file}: belongs to no layer of scripts/check-imports.ts`);
      continue;
    }
    for (const target of imports(file)) {
      if (file.endsWith('.test.ts') && target === 'scripts/soak-sizes.ts') continue;
      const allowed = [layer, ...(layers[layer] ?? [])];
      if (!allowed.some((folder) => target === folder || target.startsWith(`${folder}/`)))
        problems.push(`${file}: ${layer} may not import ${target}`);
      else if (throughBackDoor(file, target))
        problems.push(`${file}: import ${dirname(target)}/index.ts, the only door of that feature`);
    }
  }
  return problems;
}

/** A feature is entered through its index.ts by everyone but itself. */
function throughBackDoor(file: string, target: string): boolean {
  const feature = /^packages\/server\/src\/features\/([^/]+)\//;
  const to = feature.exec(target)?.[1];
  return to !== undefined && to !== feature.exec(file)?.[1] && !target.endsWith('/index.ts');
}

function layerOf(file: string): string | undefined {
  return Object.keys(layers)
    .filter((layer) => file === layer || file.startsWith(`${layer}/`))
    .sort((a, b) => b.length - a.length)[0];
}

function* imports(file: string): Generator<string> {
  const text = readFileSync(join(root, file), 'utf8');
  for (const match of text.matchAll(/(?:from|import)\s*\(?\s*'([^']+)'/g)) {
    const specifier = match[1]!;
    if (specifier.startsWith('.')) yield relative(root, resolve(root, dirname(file), specifier));
    else {
      const workspace = Object.keys(workspaces).find(
        (name) => specifier === name || specifier.startsWith(`${name}/`),
      );
      if (workspace) yield workspaces[workspace]!;
    }
  }
}

function sources(directory: string): string[] {
  return readdirSync(join(root, directory), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts') && !name.includes('node_modules'))
    .map((name) => join(directory, name));
}
