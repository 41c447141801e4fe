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
  return (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value))
      throw badRequest(`${where} must be a JSON object`);
    const cleaned = withoutNulls(schema, value, '') as Record<string, unknown>;
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

/** Copies declared objects and arrays without the nulls of optional fields. */
function withoutNulls(schema: TSchema, value: unknown, path: string): unknown {
  const node = schema as SchemaNode;
  if (typeof value === 'string') {
    if (node.type === 'string' && value.includes('\0'))
      throw badRequest(`${path} must not contain null characters`);
    return value;
  }
  if (Array.isArray(value) && node.items) {
    const { items } = node;
    return value.map((item, i) => withoutNulls(items, item, `${path}[${i}]`));
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value) || !node.properties)
    return value;
  const cleaned: Record<string, unknown> = {};
  for (const [key, property] of Object.entries(node.properties)) {
    if (!Object.hasOwn(value, key)) continue;
    const field = (value as Record<string, unknown>)[key];
    if (field === null && !node.required?.includes(key)) continue;
    cleaned[key] = withoutNulls(property, field, path === '' ? key : `${path}.${key}`);
  }
  // An object without declared fields (a function's input) is the caller's own business.
  return Object.keys(node.properties).length === 0 ? value : cleaned;
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
