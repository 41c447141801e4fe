import { X509Certificate } from 'node:crypto';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createSecureContext } from 'node:tls';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { loadCertificate, selfSigned } from './certificate.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'coppice-certificate-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

const hosts = ['localhost', '127.0.0.1', '::1', 'fe80::1:2', 'db.example.com'];

test('is good for its hosts and for nobody else', () => {
  for (let i = 0; i < 20; i++) {
    const { cert, key } = selfSigned(hosts);
    const x509 = new X509Certificate(cert);
    expect(x509.verify(x509.publicKey)).toBe(true);
    expect(x509.checkHost('db.example.com')).toBe('db.example.com');
    expect(x509.checkHost('example.com')).toBeUndefined();
    for (const address of ['127.0.0.1', '::1', 'fe80::1:2'])
      expect(x509.checkIP(address)).toBe(address);
    expect(x509.validFromDate.getTime()).toBeLessThan(Date.now());
    expect(x509.validToDate.getTime()).toBeGreaterThan(Date.now() + 9 * 365 * 86_400_000);
    expect(() => createSecureContext({ cert, key })).not.toThrow();
  }
});

test('is made once, readable by the service alone, and made again when spoilt', async () => {
  const options = { certFile: undefined, keyFile: undefined, directory, hosts };
  const first = await loadCertificate(options);
  expect(await loadCertificate(options)).toEqual(first);
  expect((await stat(join(directory, 'server.key'))).mode & 0o777).toBe(0o600);
  await writeFile(join(directory, 'server.crt'), 'half a cert');
  const second = await loadCertificate(options);
  expect(second.cert).not.toBe(first.cert);
  expect(await readFile(join(directory, 'server.crt'), 'utf8')).toBe(second.cert);
});

test('a configured one must have its own key', async () => {
  const [one, two] = [selfSigned(hosts), selfSigned(hosts)];
  const [certFile, keyFile] = [join(directory, 'a.crt'), join(directory, 'a.key')];
  await writeFile(certFile, one.cert);
  await writeFile(keyFile, one.key);
  expect(await loadCertificate({ certFile, keyFile, directory, hosts })).toEqual(one);
  await writeFile(keyFile, two.key);
  await expect(loadCertificate({ certFile, keyFile, directory, hosts })).rejects.toThrow(/key/);
});
