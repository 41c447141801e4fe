// Accounts and sessions: anonymous ones, verified ones, and how the first become the second.
import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import { type AccountsDeps, type AccountsService, createAccountsService } from './service.ts';

export { createCredentials } from './credentials.ts';
export { createIdentityVerifier, type TrustedIssuer } from './identity.ts';
export type { AccountsService } from './service.ts';

export function createAccounts(deps: AccountsDeps): { routes: Route[]; service: AccountsService } {
  const service = createAccountsService(deps);
  const { accounts } = operations;
  return {
    service,
    routes: [
      route(accounts.me, ({ principal }) => ({
        id: principal.customerId,
        email: principal.email,
        created_at: principal.customerSince,
        status: 'active',
        is_anonymous: principal.isAnonymous,
      })),
      route(accounts.register, ({ address }) => service.register(address)),
      route(accounts.refresh, ({ body }) =>
        service.refresh(body.anonymous_id, body.anonymous_secret),
      ),
      route(accounts.claim, ({ principal, body }) => service.claim(principal, body.id_token)),
      route(accounts.signIn, ({ body }) => service.signIn(body.id_token)),
    ],
  };
}
