// Branches: databases that begin as what another one is, or was at an instant.
import { operations } from '@coppice/contract';
import { type Route, route } from '../../kernel/route.ts';
import { type ConnectionStrings, renderDatabase } from '../databases/index.ts';
import { type BranchesDeps, createBranchesService } from './service.ts';

export function createBranches(
  deps: BranchesDeps & { connectionStrings: Pick<ConnectionStrings, 'render'> },
): { routes: Route[] } {
  const service = createBranchesService(deps);
  return {
    routes: [
      route(operations.branches.create, async ({ principal, database, body }) => {
        const { name, snapshot_at: snapshotAt } = body;
        const branch = await service.create(principal, database, { name, snapshotAt });
        return {
          ...renderDatabase(branch),
          connection_string: deps.connectionStrings.render(branch.id, 'admin'),
        };
      }),
    ],
  };
}
