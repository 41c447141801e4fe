import { badRequest } from '../../kernel/app-error.ts';
import type { StoredScope } from './store.ts';

/** Reads `scope_json`. Anything but `{"databases": [{"id", "access"}]}` is refused. */
export function parseScope(scopeJson: string, owned: ReadonlySet<string>): StoredScope {
  let document: unknown;
  try {
    document = JSON.parse(scopeJson);
  } catch {
    throw badRequest('scope_json is not valid JSON');
  }
  const entries = isObject(document) ? document.databases : undefined;
  if (!isObject(document) || !Array.isArray(entries) || Object.keys(document).length !== 1)
    throw badRequest('scope_json must have the shape {"databases": [{"id", "access"}]}');
  if (entries.length === 0) throw badRequest('scope_json must list at least one database');

  const scope: StoredScope = Object.create(null);
  for (const entry of entries) {
    if (!isObject(entry) || typeof entry.id !== 'string' || typeof entry.access !== 'string')
      throw badRequest('each database of scope_json must have an id and an access, both strings');
    const { id, access } = entry;
    if (access !== 'ro' && access !== 'rw')
      throw badRequest('access in scope_json must be "ro" or "rw"');
    if (!owned.has(id)) throw badRequest(`scope_json names a database that you do not have: ${id}`);
    if (id in scope && scope[id] !== access)
      throw badRequest(`scope_json gives two kinds of access to ${id}`);
    scope[id] = access;
  }
  return scope;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
