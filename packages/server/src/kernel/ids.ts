import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';

export type IdPrefix =
  | 'anon'
  | 'cus'
  | 'db'
  | 'ck'
  | 'pk'
  | 'sk'
  | 'bkp'
  | 'rst'
  | 'fn'
  | 'ver'
  | 'run'
  | 'tok';

const alphabet = 'abcdefghijklmnopqrstuvwxyz234567';

/** An opaque identifier: the resource's prefix and 100 random bits in lower-case base 32. */
export function newId(prefix: IdPrefix): string {
  return `${prefix}_${randomBase32(20)}`;
}

export function randomBase32(length: number): string {
  let text = '';
  for (const byte of randomBytes(length)) text += alphabet[byte & 31];
  return text;
}

/** Credentials start with what they are, so that a leaked one can be recognised. */
export type CredentialPrefix = 'cop_pat' | 'cop_ck' | 'cop_pk' | 'cop_sk' | 'cop_as';

/** A new credential value: 260 random bits. Only `hashCredential` of it is stored. */
export function newCredential(prefix: CredentialPrefix): string {
  return `${prefix}_${randomBase32(52)}`;
}

export function hashCredential(value: string): Buffer {
  return createHash('sha256').update(value).digest();
}

export function sameHash(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}
