import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { compileValidation } from './validation.ts';

const validate = compileValidation(
  Type.Object({
    name: Type.String({ minLength: 1 }),
    size: Type.Optional(Type.Integer()),
    limits: Type.Optional(Type.Object({ timeout: Type.Optional(Type.Integer()) })),
    input: Type.Optional(Type.Object({})),
  }),
  'request body',
);

test('unknown fields are dropped, nulls of optional fields omitted at every depth', () => {
  expect(validate({ name: 'a', size: null, limits: { timeout: null }, other: 1 })).toEqual({
    name: 'a',
    limits: {},
  });
});

test("a free object keeps everything, the caller's nulls included", () => {
  const input = { a: null, b: { c: null }, d: 'x\0y' };
  expect(validate({ name: 'a', input })).toEqual({ name: 'a', input });
});

test.each([
  [{}, /name is required/],
  [{ name: null }, /name must be a string/],
  [{ name: 1 }, /name must be a string/],
  [{ name: 'a', size: '1' }, /size must be an integer/],
  [{ name: 'a', limits: { timeout: 'x' } }, /limits\.timeout must be an integer/],
  [{ name: 'a\0b' }, /null characters/],
  [[], /must be a JSON object/],
  [null, /must be a JSON object/],
  [{ name: '' }, /name/],
])('%j is refused: %s', (value, message) => {
  expect(() => validate(value)).toThrow(message);
});

test('inherited names are not fields', () => {
  expect(() => validate(JSON.parse('{"__proto__": {"name": "x"}}'))).toThrow(/name is required/);
});
