// How the tokens of a database's end users are verified: the customer's own issuer, by its JWKS.
import type { Metastore } from '../../engine/metastore/metastore.ts';
import { createTrustedCache } from '../../engine/metastore/trusted-cache.ts';
import type { Clock } from '../../kernel/clock.ts';
import type { Route } from '../../kernel/route.ts';
import { createEndUserVerifier, type EndUserVerifier } from './end-user-verifier.ts';
import { createJwksSource } from './jwks-source.ts';
import { authConfigRoutes } from './routes.ts';
import { createAuthConfigService } from './service.ts';
import type { AuthConfigRow } from './store.ts';

export type { EndUser, EndUserVerifier } from './end-user-verifier.ts';

export function createAuthConfig(deps: {
  metastore: Metastore;
  clock: Clock;
  /** Whether a JWKS may be on this machine or in its private network. */
  allowPrivate: boolean;
}): { routes: Route[]; verifier: EndUserVerifier; close(): Promise<void> } {
  const source = createJwksSource({ allowPrivate: deps.allowPrivate });
  const cache = createTrustedCache<AuthConfigRow | undefined>(
    deps.metastore.notifications,
    'auth_configs',
  );
  const service = createAuthConfigService({ ...deps, source, cache });
  return {
    routes: authConfigRoutes(service),
    verifier: createEndUserVerifier({ configOf: service.find, source, clock: deps.clock }),
    close: () => source.close(),
  };
}
