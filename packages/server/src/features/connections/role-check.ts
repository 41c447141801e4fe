import type { Sessions } from '../../engine/sessions.ts';
import { unprocessable } from '../../kernel/app-error.ts';
import { isInternalRole } from '../../kernel/internal-role.ts';

/** Every database is made with these: no need to wake it and look. */
const givenRoles = ['admin', 'readonly', 'anon', 'authenticated'];

/** Throws a 422 unless clients may act as the role. */
export function createRoleCheck(sessions: Sessions) {
  return async (databaseId: string, role: string): Promise<void> => {
    if (givenRoles.includes(role)) return;
    if (!isInternalRole(role) && (await roleExists(sessions, databaseId, role))) return;
    throw unprocessable(`role "${role}" does not exist`);
  };
}

async function roleExists(sessions: Sessions, databaseId: string, role: string): Promise<boolean> {
  const { rowCount } = await sessions.use(databaseId, { role: 'postgres' }, (client) =>
    client.query('select from pg_catalog.pg_roles where rolname = $1 and not rolsuper', [role]),
  );
  return rowCount === 1;
}
