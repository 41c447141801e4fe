import { quoteUriPart } from '../../kernel/uri.ts';

export interface ConnectionStrings {
  readonly host: string;
  readonly port: number;
  /** `postgresql://{database_id}.{role}@{host}:{port}/postgres`; with the password if one is given. */
  render(databaseId: string, role: string, password?: string): string;
}

/** `address` is asked at each call: the gateway may listen on a port that the system chose. */
export function createConnectionStrings(
  address: () => { host: string; port: number },
): ConnectionStrings {
  return {
    get host() {
      return address().host;
    },
    get port() {
      return address().port;
    },
    render(databaseId, role, password) {
      const { host, port } = address();
      const user = quoteUriPart(`${databaseId}.${role}`);
      const secret = password === undefined ? '' : `:${quoteUriPart(password)}`;
      const hostPart = host.includes(':') ? `[${host}]` : host;
      return `postgresql://${user}${secret}@${hostPart}:${port}/postgres`;
    },
  };
}
