// The table of settings in docs/operating.md, made from the settings themselves:
// `node scripts/settings-table.ts` writes it, a test compares it.
import { readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { envName, flagName, settings } from '../packages/server/src/config.ts';

const file = resolve(fileURLToPath(import.meta.url), '../../docs/operating.md');
const [begin, end] = ['<!-- settings -->', '<!-- end of settings -->'];

export function operatingGuide(): { current: string; expected: string } {
  const current = readFileSync(file, 'utf8');
  const rows = Object.entries(settings).map(
    ([key, { about, defaultText }]) =>
      `| \`${flagName(key)}\` | \`${envName(key)}\` | ${defaultText === '' ? '' : `\`${defaultText}\``} | ${about} |`,
  );
  const table = ['| flag | variable | default | |', '|---|---|---|---|', ...rows].join('\n');
  const expected = `${current.slice(0, current.indexOf(begin) + begin.length)}\n${table}\n${current.slice(current.indexOf(end))}`;
  return { current, expected };
}

if (import.meta.main) writeFileSync(file, operatingGuide().expected);
