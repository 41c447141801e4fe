import type { DatabaseRecord } from '../../kernel/database-record.ts';
import type { TokenSigner } from '../signing/index.ts';

export interface ConnectionsDeps {
  signer: TokenSigner;
  databases: { adminPassword(id: string): Promise<string> };
  connectionStrings: {
    readonly host: string;
    readonly port: number;
    render(databaseId: string, role: string, password?: string): string;
  };
  /** Throws a 422 unless clients may act as the role. */
  checkRole(databaseId: string, role: string): Promise<void>;
  /** Base URL that clients use. */
  publicUrl(): string;
  requireTls: boolean;
}

export type ConnectionsService = ReturnType<typeof createConnectionsService>;

const tokenSeconds = 600;

export function createConnectionsService(deps: ConnectionsDeps) {
  const { connectionStrings } = deps;
  const filesUrl = (databaseId: string) =>
    `${deps.publicUrl().replace(/^http/, 'ws')}/fs/${databaseId}`;

  return {
    async mintToken(databaseId: string, role: string) {
      await deps.checkRole(databaseId, role);
      const user = `${databaseId}.${role}`;
      const { token, expiresAt } = await deps.signer.sign(
        { sub: user, database: databaseId, role },
        { audience: 'connect', expiresInSeconds: tokenSeconds },
      );
      return {
        host: connectionStrings.host,
        port: connectionStrings.port,
        database: 'postgres',
        user,
        token,
        fs_websocket_url: filesUrl(databaseId),
        expires_in_seconds: tokenSeconds,
        expires_at: expiresAt,
        tls: deps.requireTls ? 'required' : 'not_enforced',
      };
    },

    async filesAccess(database: DatabaseRecord) {
      const password = await deps.databases.adminPassword(database.id);
      return {
        database_id: database.id,
        database_name: database.name,
        admin_user: 'admin',
        admin_password: password,
        connection_string: connectionStrings.render(database.id, 'admin'),
        fs_websocket_url: filesUrl(database.id),
        connection_string_with_password: connectionStrings.render(database.id, 'admin', password),
      };
    },
  };
}
