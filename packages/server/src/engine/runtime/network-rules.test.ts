import { expect, test } from 'vitest';
import { isPublicAddress } from '../../kernel/public-address.ts';
import { covers, parseAllowlistEntry, parseTarget, resolveTarget } from './network-rules.ts';

test.each([
  ['example.com', 'example.com'],
  ['Example.COM.', 'example.com'],
  ['example.com:8443', 'example.com:8443'],
  ['*.example.com', '*.example.com'],
  ['https://api.example.com/v1?x', 'api.example.com:443'],
  ['http://api.example.com:81', 'api.example.com:81'],
  ['127.0.0.1:80', '127.0.0.1:80'],
  ['[2001:db8::1]:443', '[2001:db8::1]:443'],
  ['', undefined],
  ['*', undefined],
  ['*.*.com', undefined],
  ['exa mple.com', undefined],
  ['example.com:99999', undefined],
  ['example.com:', undefined],
  ['user@example.com', undefined],
  ['[nonsense]', undefined],
  ['a/b', undefined],
])('the entry %s is kept as %s', (entry, kept) => {
  expect(parseAllowlistEntry(entry)).toBe(kept);
});

test.each([
  ['example.com', 'example.com:1234', true],
  ['example.com:443', 'example.com:443', true],
  ['example.com:443', 'example.com:80', false],
  ['example.com', 'evil-example.com:443', false],
  ['example.com', 'sub.example.com:443', false],
  ['*.example.com', 'sub.example.com:443', true],
  ['*.example.com', 'a.b.example.com:443', true],
  ['*.example.com', 'example.com:443', false],
  ['*.example.com', 'evilexample.com:443', false],
  ['*.example.com:443', 'a.example.com:80', false],
  ['[::1]', '[::1]:80', true],
  ['example.com', 'EXAMPLE.com.:80', true],
])('%s covers %s: %s', (entry, target, expected) => {
  expect(covers(entry, parseTarget(target)!)).toBe(expected);
});

test.each([
  '',
  'example.com',
  'example.com:0',
  'example.com:70000',
  'a b:80',
  'http://x:80',
  'x@y:80',
])('"%s" is no target', (text) => expect(parseTarget(text)).toBeUndefined());

test.each([
  ['8.8.8.8', true],
  ['1.1.1.1', true],
  ['2606:4700::1111', true],
  ['127.0.0.1', false],
  ['127.255.255.255', false],
  ['0.0.0.0', false],
  ['10.1.2.3', false],
  ['172.16.0.1', false],
  ['172.32.0.1', true],
  ['192.168.1.1', false],
  ['169.254.169.254', false],
  ['100.64.0.1', false],
  ['224.0.0.1', false],
  ['255.255.255.255', false],
  ['198.18.0.1', false],
  ['::1', false],
  ['::', false],
  ['fe80::1', false],
  ['fe80::1%eth0', false],
  ['fc00::1', false],
  ['fd00::1', false],
  ['ff02::1', false],
  ['::ffff:127.0.0.1', false],
  ['::ffff:8.8.8.8', false],
  ['64:ff9b::7f00:1', false],
  ['2002:7f00:1::', false],
  ['2001:0:1::1', false],
  ['2001:db8::1', false],
  ['nonsense', false],
])('the address %s is public: %s', (address, expected) => {
  expect(isPublicAddress(address)).toBe(expected);
});

test('a name that leads to a private address is refused unless that address is listed', async () => {
  const rules = { privateAllowed: [] as string[], timeoutMs: 5_000 };
  for (const host of ['localhost', '127.0.0.1', '0x7f.1', '2130706433', '::1'])
    await expect(resolveTarget({ host, port: 80 }, rules)).rejects.toThrow();
  rules.privateAllowed = ['127.0.0.1:80'];
  expect(await resolveTarget({ host: '127.0.0.1', port: 80 }, rules)).toBe('127.0.0.1');
  await expect(resolveTarget({ host: '127.0.0.1', port: 81 }, rules)).rejects.toThrow();
});
