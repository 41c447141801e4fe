// Who is calling, and the one place that decides what they may do.
import type { Access } from '@coppice/contract';
import { forbidden } from './app-error.ts';

export type ScopeAccess = 'ro' | 'rw';

export interface Principal {
  /** Primary key of the account in the control database. */
  accountKey: string;
  /** Public id: `anon_…` or `cus_…`. */
  customerId: string;
  isAnonymous: boolean;
  /** Of a verified customer. */
  email: string | null;
  customerSince: Date;
  /** What was presented: rate limits and logs go by it. */
  credentialId: string;
  /** `null`: the whole account. Otherwise only these databases, at that level. */
  scope: ReadonlyMap<string, ScopeAccess> | null;
}

/** What the principal may do with one database: `rw` also stands for an unscoped credential. */
export function accessTo(principal: Principal, databaseId: string): ScopeAccess | null {
  return principal.scope ? (principal.scope.get(databaseId) ?? null) : 'rw';
}

/**
 * Throws unless the principal may perform an operation that needs `access`.
 * `role` matters for connect tokens alone: a read-only token may mint one for `readonly`.
 */
export function authorize(
  principal: Principal,
  access: Access,
  on: { databaseId?: string; role?: string } = {},
): void {
  if (access === 'public' || access === 'self') return;
  if (on.databaseId !== undefined) {
    const granted = accessTo(principal, on.databaseId);
    if (!granted) throw forbidden('token does not have access to this database');
    if (access === 'account' && principal.scope)
      throw forbidden('this operation needs a token without scopes');
    if (granted === 'ro' && !readOnlyMay(access, on.role))
      throw forbidden('read-only token cannot perform this operation');
    return;
  }
  if (access !== 'read' && principal.scope)
    throw forbidden('this operation needs a token without scopes');
}

function readOnlyMay(access: Access, role: string | undefined): boolean {
  return access === 'read' || access === 'sql' || (access === 'connect' && role === 'readonly');
}
