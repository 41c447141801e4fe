// The shape of an operation: what a client sends, what it gets, and what it must be allowed to do.
// The server validates with it, OpenAPI is generated from it, the SDK is typed by it.
import type { TObject, TSchema } from 'typebox';

/**
 * What a caller needs. `public`: no credentials. `self`: any valid credential. `read`, `sql`,
 * `connect` and `write` are about one database (`sql`: a read-only token may read; `connect`: it
 * may for the role `readonly`). `account`: a credential without scopes.
 */
export type Access = 'public' | 'self' | 'read' | 'sql' | 'connect' | 'write' | 'account';

export interface Operation {
  /** `<feature>.<verb>` */
  readonly id: string;
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  /** OpenAPI style: `/customer/databases/{database_id}` */
  readonly path: string;
  readonly access: Access;
  readonly summary: string;
  readonly description?: string;
  readonly params?: TObject;
  readonly query?: TObject;
  readonly body?: TObject;
  /** Success status → body; `null` for an empty one. The first is the usual one. */
  readonly responses: { readonly [status: number]: TSchema | null };
  /** Statuses this operation may answer besides the ones every operation may (400 401 403 404 429 500). */
  readonly errors?: readonly (409 | 422)[];
}

export function operation<const O extends Operation>(definition: O): O {
  return definition;
}
