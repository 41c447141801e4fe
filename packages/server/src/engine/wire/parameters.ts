// A JSON value as the text of a parameter. Arrays become Postgres arrays where the statement
// wants one, JSON text everywhere else, as objects do.
import { type BuiltinTypes, isArrayType } from './types.ts';

export function encodeParameter(
  value: unknown,
  typeOid: number,
  builtins: BuiltinTypes,
): string | null {
  if (value === null || value === undefined) return null;
  if (typeof value === 'string') return value;
  if (Array.isArray(value) && isArrayType(builtins, typeOid)) return arrayText(value);
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO */
function arrayText(values: readonly unknown[]): string {
  const elements = values.map((value) => {
    if (value === null || value === undefined) return 'NULL';
    if (Array.isArray(value)) return arrayText(value);
    const text = typeof value === 'object' ? JSON.stringify(value) : String(value);
    return `"${text.replace(/["\\]/g, '\\$&')}"`;
  });
  return `{${elements.join(',')}}`;
}
