// Which addresses are on the public Internet. What tenants make the service connect to may be
// nothing else: loopback, private, link-local (cloud metadata), multicast and the like are ours.
// https://www.iana.org/assignments/iana-ipv4-special-registry
import { BlockList, isIP } from 'node:net';

const special = new BlockList();
for (const [network, prefix] of [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
] as const)
  special.addSubnet(network, prefix, 'ipv4');
// Of IPv6 only 2000::/3 is public at all (so mapped, translated and local ones are not), without
// Teredo, documentation and 6to4, which can stand for any IPv4 address.
special.addSubnet('2001::', 23, 'ipv6');
special.addSubnet('2001:db8::', 32, 'ipv6');
special.addSubnet('2002::', 16, 'ipv6');
special.addSubnet('3fff::', 20, 'ipv6');
const publicV6 = new BlockList();
publicV6.addSubnet('2000::', 3, 'ipv6');

export function isPublicAddress(address: string): boolean {
  const version = isIP(address);
  if (version === 4) return !special.check(address, 'ipv4');
  if (version === 6 && !address.includes('%'))
    return publicV6.check(address, 'ipv6') && !special.check(address, 'ipv6');
  return false;
}
