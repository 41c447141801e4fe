import type { Config } from '../config.ts';

/** Where clients reach the service: final only once the ports are open. */
export interface Addresses {
  /** As it stands in URLs and connection strings. */
  publicHost: string;
  publicUrl(): string;
  gatewayPort(): number;
  opened(ports: { httpPort?: number; gatewayPort?: number }): void;
}

export function createAddresses(config: Config): Addresses {
  const ports = { httpPort: config.port, gatewayPort: config.gatewayPort };
  const publicHost = config.host === '0.0.0.0' || config.host === '::' ? 'localhost' : config.host;
  const urlHost = publicHost.includes(':') ? `[${publicHost}]` : publicHost;
  return {
    publicHost,
    publicUrl: () =>
      (config.publicUrl ?? `http://${urlHost}:${ports.httpPort}`).replace(/\/+$/, ''),
    gatewayPort: () => ports.gatewayPort,
    opened: (final) => void Object.assign(ports, final),
  };
}
