/** Roles that are the service's own or the server's: no client ever acts as one of them. */
export function isInternalRole(role: string): boolean {
  return role === 'postgres' || role.startsWith('pg_') || role.startsWith('coppice');
}
