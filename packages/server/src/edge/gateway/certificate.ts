// The certificate of the Postgres port: the configured one, or one that signs itself, made on first
// start and kept in `directory` (`server.crt`, `server.key`). Clients that only want encryption
// (sslmode=require) take it; those that verify are given it as their root.
import {
  createPrivateKey,
  generateKeyPairSync,
  randomBytes,
  sign,
  X509Certificate,
} from 'node:crypto';
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { join } from 'node:path';

export interface Certificate {
  cert: string;
  key: string;
}

const dayMs = 86_400_000;
const validDays = 3650;
const renewDays = 30;

export async function loadCertificate(options: {
  certFile: string | undefined;
  keyFile: string | undefined;
  directory: string;
  hosts: readonly string[];
}): Promise<Certificate> {
  const { certFile, keyFile } = options;
  if (certFile !== undefined && keyFile !== undefined)
    return check({ cert: await readFile(certFile, 'utf8'), key: await readFile(keyFile, 'utf8') });

  const files = {
    cert: join(options.directory, 'server.crt'),
    key: join(options.directory, 'server.key'),
  };
  try {
    const kept = check({
      cert: await readFile(files.cert, 'utf8'),
      key: await readFile(files.key, 'utf8'),
    });
    const { validToDate } = new X509Certificate(kept.cert);
    if (validToDate.getTime() - Date.now() > renewDays * dayMs) return kept;
  } catch {
    // Missing, unreadable or half-written: make a new one.
  }
  const made = selfSigned(options.hosts);
  await mkdir(options.directory, { recursive: true, mode: 0o700 });
  for (const part of ['key', 'cert'] as const) {
    await writeFile(`${files[part]}.new`, made[part], { mode: 0o600 });
    await rename(`${files[part]}.new`, files[part]);
  }
  return made;
}

/** Throws unless key and certificate belong together. */
function check(certificate: Certificate): Certificate {
  const x509 = new X509Certificate(certificate.cert);
  if (!x509.checkPrivateKey(createPrivateKey(certificate.key)))
    throw new Error('the TLS key does not belong to the TLS certificate');
  return certificate;
}

/** X.509 v3 (RFC 5280) with an ECDSA P-256 key. */
export function selfSigned(hosts: readonly string[]): Certificate {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const ecdsaWithSha256 = sequence(oid(0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02));
  const name = sequence(
    der(0x31, sequence(oid(0x55, 0x04, 0x03), der(0x0c, Buffer.from('Coppice gateway')))),
  );
  const now = Date.now();
  const serial = randomBytes(16);
  serial[0] = (serial[0]! & 0x7f) | 0x40;
  const body = sequence(
    der(0xa0, der(0x02, Buffer.of(2))),
    der(0x02, serial),
    ecdsaWithSha256,
    name,
    sequence(time(now - dayMs), time(now + validDays * dayMs)),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(
      0xa3,
      sequence(
        // Basic constraints: an authority, so that it can be its own root.
        extension(oid(0x55, 0x1d, 0x13), sequence(der(0x01, Buffer.of(0xff)))),
        extension(oid(0x55, 0x1d, 0x11), sequence(...hosts.map(alternativeName))),
      ),
    ),
  );
  const signature = sign('sha256', body, privateKey);
  const whole = sequence(body, ecdsaWithSha256, der(0x03, Buffer.of(0), signature));
  const lines = whole.toString('base64').match(/.{1,64}/g)!;
  return {
    cert: ['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join('\n'),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  };
}

/** Tag, length, content: the distinguished encoding rules of X.690. */
function der(tag: number, ...parts: Buffer[]): Buffer {
  const content = Buffer.concat(parts);
  const length =
    content.length < 0x80
      ? Buffer.of(content.length)
      : content.length < 0x100
        ? Buffer.of(0x81, content.length)
        : Buffer.of(0x82, content.length >> 8, content.length & 0xff);
  return Buffer.concat([Buffer.of(tag), length, content]);
}
const sequence = (...parts: Buffer[]) => der(0x30, ...parts);
const oid = (...bytes: number[]) => der(0x06, Buffer.from(bytes));
const extension = (id: Buffer, value: Buffer) => sequence(id, der(0x04, value));

/** GeneralizedTime is only for years from 2050 on. */
function time(ms: number): Buffer {
  const digits = new Date(ms).toISOString().replaceAll(/[-:T]|\.\d+/g, '');
  return digits < '2050' ? der(0x17, Buffer.from(digits.slice(2))) : der(0x18, Buffer.from(digits));
}

function alternativeName(host: string): Buffer {
  if (isIP(host) === 0) return der(0x82, Buffer.from(host, 'latin1'));
  return der(0x87, addressBytes(host));
}

function addressBytes(address: string): Buffer {
  if (isIP(address) === 4) return Buffer.from(address.split('.').map(Number));
  const [head = '', tail] = address.replace(/%.*$/, '').split('::');
  const groups = (text: string) => (text === '' ? [] : text.split(':'));
  const front = groups(head);
  const back = tail === undefined ? [] : groups(tail);
  const middle = tail === undefined ? 0 : 8 - front.length - back.length;
  const all = [...front, ...Array<string>(middle).fill('0'), ...back];
  return Buffer.from(all.map((group) => group.padStart(4, '0')).join(''), 'hex');
}
