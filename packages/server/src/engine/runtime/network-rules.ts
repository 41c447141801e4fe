// Where a function may connect to: its allowlist by name, and the address behind the name.
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { isPublicAddress } from '../../kernel/public-address.ts';

export interface Target {
  /** Lower-case, without brackets. */
  host: string;
  port: number;
}

export class RefusedTarget extends Error {}

const hostName =
  /^(\*\.)?([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.?$/;

/**
 * `host`, `host:port`, `*.domain`, `*.domain:port`, `[v6]`, `[v6]:port` or a URL, as it is kept:
 * lower-case and without the rest of the URL. Undefined: none of these.
 */
export function parseAllowlistEntry(entry: string): string | undefined {
  let text = entry.trim().toLowerCase();
  const url = /^(https?):\/\/([^/?#@]+)/.exec(text);
  if (url) text = /:\d+$/.test(url[2]!) ? url[2]! : `${url[2]}:${url[1] === 'https' ? 443 : 80}`;
  const [, bracketed, plain, port] =
    /^(?:\[([^\]]+)\]|([^:[\]]+))(?::(\d{1,5}))?$/.exec(text) ?? [];
  if (port !== undefined && (Number(port) < 1 || Number(port) > 65_535)) return undefined;
  if (bracketed !== undefined && isIP(bracketed) !== 6) return undefined;
  if (bracketed === undefined && (plain === undefined || !hostName.test(plain))) return undefined;
  const host = bracketed === undefined ? plain!.replace(/\.$/, '') : `[${bracketed}]`;
  return port === undefined ? host : `${host}:${port}`;
}

/** Whether an entry as `parseAllowlistEntry` gives it covers the target. */
export function covers(entry: string, target: Target): boolean {
  const [, name, port] = /^(\[[^\]]+\]|[^:]+)(?::(\d+))?$/.exec(entry) ?? [];
  if (name === undefined || (port !== undefined && Number(port) !== target.port)) return false;
  if (name.startsWith('*.')) return target.host.endsWith(name.slice(1));
  return name === (target.host.includes(':') ? `[${target.host}]` : target.host);
}

/** `host:port` of a CONNECT request or a URL. */
export function parseTarget(text: string): Target | undefined {
  const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:[\]\s/@]+)):(\d{1,5})$/.exec(text) ?? [];
  const host = (bracketed ?? plain)?.toLowerCase().replace(/\.$/, '');
  if (!host || !port || Number(port) < 1 || Number(port) > 65_535) return undefined;
  return { host, port: Number(port) };
}

export interface AddressRules {
  /** `address` or `address:port` that may be reached although they are not public. */
  privateAllowed: readonly string[];
  timeoutMs: number;
}

/**
 * The address to connect to. It is looked up once, here, and the connection goes to what was
 * checked: a name that answers differently the next time changes nothing.
 */
export async function resolveTarget(target: Target, rules: AddressRules): Promise<string> {
  const addresses = isIP(target.host) ? [target.host] : await lookUp(target.host, rules.timeoutMs);
  const allowed = addresses.find(
    (address) => isPublicAddress(address) || isListed(address, target.port, rules.privateAllowed),
  );
  if (allowed === undefined)
    throw new RefusedTarget(`${target.host} does not lead to a public address`);
  return allowed;
}

function isListed(address: string, port: number, listed: readonly string[]): boolean {
  const name = address.includes(':') ? `[${address}]` : address;
  return listed.includes(name) || listed.includes(`${name}:${port}`);
}

async function lookUp(host: string, timeoutMs: number): Promise<string[]> {
  let timer: NodeJS.Timeout | undefined;
  const deadline = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`${host} could not be looked up in time`)),
      timeoutMs,
    );
  });
  try {
    const found = await Promise.race([lookup(host, { all: true }), deadline]);
    return found.map(({ address }) => address);
  } finally {
    clearTimeout(timer);
  }
}
