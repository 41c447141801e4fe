// Pieces that several features share.
import { type TProperties, type TSchema, Type } from 'typebox';

export const Timestamp = Type.String({
  description: 'RFC 3339 UTC',
  examples: ['2026-01-31T12:34:56.789Z'],
});
export const Id = (prefix: string) =>
  Type.String({ description: `identifier \`${prefix}_…\``, pattern: `^${prefix}_[a-z0-9]+$` });
export const Nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()]);
export const Message = Type.Object({ message: Type.String() });
export const Text = (description: string, options: Record<string, unknown> = {}) =>
  Type.String({ description, ...options });

/** Request bodies and queries: unknown fields are ignored. */
export const Input = <T extends TProperties>(properties: T) => Type.Object(properties);

export const DatabaseParams = Type.Object({ database_id: Text('the database') });
export const withDatabase = <T extends TProperties>(properties: T) =>
  Type.Object({ database_id: Text('the database'), ...properties });

/** Databases, branches and restore targets. */
export const DatabaseName = Type.String({
  description: 'unique within the account: 1 to 63 letters, digits, `_`, `-`, `.` and inner spaces',
  minLength: 1,
  maxLength: 63,
  pattern: '^[\\p{L}\\p{N}_.-]([\\p{L}\\p{N}_. -]*[\\p{L}\\p{N}_.-])?$',
});

export const ExpiresInDays = Type.Number({
  description: 'days until it expires',
  exclusiveMinimum: 0,
  maximum: 36_500,
});

export const ErrorBody = Type.Object(
  { message: Type.String({ description: 'human-readable' }) },
  { additionalProperties: false },
);
