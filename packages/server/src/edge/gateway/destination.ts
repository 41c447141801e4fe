// Where a client wants to go, read from its start-up packet, and what of the packet goes along.
import type { StartupPacket } from './protocol.ts';
import { Refusal } from './refusal.ts';

export interface Destination {
  databaseId: string;
  role: string;
  /** The database inside the instance: `postgres`, or one that its owner created beside it. */
  databaseName: string;
}

const tenantUser = /^(db_[a-z0-9]+)[.:](.+)$/s;

export function destinationOf({ parameters }: StartupPacket): Destination {
  const user = parameters.get('user') ?? '';
  const match = tenantUser.exec(user);
  if (!match)
    throw new Refusal('28000', 'the user name must be of the form <database id>.<role>', {
      hint: 'Connect with the connection string of the database.',
    });
  const [, databaseId, role] = match as unknown as [string, string, string];
  refuseReplication(parameters.get('replication'));
  const asked = parameters.get('database') ?? '';
  // Clients that are given no database name send the user's.
  const isDefault = asked === '' || asked === user || asked === databaseId;
  return { databaseId, role, databaseName: isDefault ? 'postgres' : asked };
}

/**
 * Everything the client set, `options` included, as the server would get it directly: there it has
 * the rights of `role` and no others. Only who it is and where it goes is decided here.
 */
export function serverParameters(
  { parameters }: StartupPacket,
  { role, databaseName }: Destination,
): Map<string, string> {
  const sent = new Map(parameters);
  sent.delete('replication');
  sent.set('user', role);
  sent.set('database', databaseName);
  return sent;
}

function refuseReplication(value: string | undefined): void {
  if (value === undefined || /^(f|false|n|no|of|off|0)$/i.test(value)) return;
  throw new Refusal('28000', 'replication connections are not available');
}
