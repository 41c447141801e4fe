// Checks what a client sent against the contract: nothing is coerced, unknown fields are ignored,
// `null` for an optional field counts as omitted, and no declared text may hold a NUL character
// (Postgres has no such text).
import type { TObject, TSchema } from '@coppice/contract';
import { Compile } from 'typebox/compile';
import { badRequest } from '../../kernel/app-error.ts';

export type Validate = (value: unknown) => Record<string, unknown>;

/** `where` names the part in messages about it as a whole: `request body`, `query string`. */
export function compileValidation(schema: TObject | undefined, where: string): Validate {
  if (!schema) return () => ({});
  const checker = Compile(schema);
  const clean = compileCleaning(schema);
  return (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value))
      throw badRequest(`${where} must be a JSON object`);
    const cleaned = clean(value, '') as Record<string, unknown>;
    if (!checker.Check(cleaned)) throw badRequest(explain([...checker.Errors(cleaned)], where));
    return cleaned;
  };
}

interface SchemaNode {
  type?: string;
  properties?: Record<string, TSchema>;
  required?: readonly string[];
  items?: TSchema;
}

/** Copies a value without the nulls of optional fields; `path` names it in messages. */
type Clean = (value: unknown, path: string) => unknown;

function compileCleaning(schema: TSchema): Clean {
  const { type, properties, required, items } = schema as SchemaNode;
  const cleanItem = items && compileCleaning(items);
  const fields = Object.entries(properties ?? {}).map(([key, property]) => ({
    key,
    isOptional: !required?.includes(key),
    clean: compileCleaning(property),
  }));
  return (value, path) => {
    if (typeof value === 'string') {
      if (type === 'string' && value.includes('\0'))
        throw badRequest(`${path} must not contain null characters`);
      return value;
    }
    if (typeof value !== 'object' || value === null) return value;
    if (Array.isArray(value))
      return cleanItem ? value.map((item, i) => cleanItem(item, `${path}[${i}]`)) : value;
    // An object without declared fields (a function's input) is the caller's own business.
    if (fields.length === 0) return value;
    const cleaned: Record<string, unknown> = {};
    for (const { key, isOptional, clean } of fields) {
      if (!Object.hasOwn(value, key)) continue;
      const field = (value as Record<string, unknown>)[key];
      if (field === null && isOptional) continue;
      cleaned[key] = clean(field, path === '' ? key : `${path}.${key}`);
    }
    return cleaned;
  };
}

interface Problem {
  keyword: string;
  instancePath: string;
  params: object;
  message: string;
}

function explain(problems: readonly unknown[], where: string): string {
  const problem = problems[0] as Problem | undefined;
  if (!problem) return `${where} is not valid`;
  const path = problem.instancePath.slice(1).replaceAll('/', '.');
  const params = problem.params as Record<string, unknown>;
  if (problem.keyword === 'required') {
    const missing = (params.requiredProperties as string[] | undefined)?.[0] ?? 'a field';
    return `${path === '' ? '' : `${path}.`}${missing} is required`;
  }
  if (problem.keyword === 'pattern') return `${path} has characters or a form that is not allowed`;
  if (problem.keyword === 'type') return `${path || where} must be ${article(String(params.type))}`;
  return `${path || where} ${problem.message}`;
}

function article(type: string): string {
  return `${/^[aeiou]/.test(type) ? 'an' : 'a'} ${type}`;
}
