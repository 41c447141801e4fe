// Encryption at rest for what must be read back: admin passwords, customers' secrets, signing keys.
//
// Sealed form, as bytes: version (1) ‖ key id (8) ‖ nonce (12) ‖ tag (16) ‖ ciphertext.
// The key id names the master key it was sealed with, so that keys can be rotated: the newest key
// seals, every known key opens. The context (what the value is, and whose) is authenticated, so
// that a sealed value moved to another row does not open there.
import { createCipheriv, createDecipheriv, createHash, randomBytes } from 'node:crypto';

const version = 1;
const headerBytes = 1 + 8 + 12 + 16;

export interface Secretbox {
  seal(plaintext: string, context: string): Buffer;
  open(sealed: Buffer, context: string): string;
}

/** `keys`: 32 bytes each; the first one seals. */
export function createSecretbox(keys: readonly Buffer[]): Secretbox {
  const known = new Map(keys.map((key) => [keyId(key).toString('hex'), key]));
  const current = keys[0];
  if (!current) throw new Error('secretbox needs at least one key');
  for (const key of keys)
    if (key.length !== 32) throw new Error('a master key must be 32 bytes long');
  const currentId = keyId(current);

  return {
    seal(plaintext, context) {
      const nonce = randomBytes(12);
      const cipher = createCipheriv('aes-256-gcm', current, nonce);
      cipher.setAAD(Buffer.from(context));
      const ciphertext = Buffer.concat([cipher.update(plaintext, 'utf8'), cipher.final()]);
      return Buffer.concat([Buffer.of(version), currentId, nonce, cipher.getAuthTag(), ciphertext]);
    },

    open(sealed, context) {
      if (sealed[0] !== version || sealed.length < headerBytes)
        throw new Error('not a sealed value');
      const id = sealed.subarray(1, 9).toString('hex');
      const key = known.get(id);
      if (!key) throw new Error(`sealed with master key ${id}, which is not configured`);
      const decipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(9, 21));
      decipher.setAAD(Buffer.from(context));
      decipher.setAuthTag(sealed.subarray(21, headerBytes));
      return Buffer.concat([
        decipher.update(sealed.subarray(headerBytes)),
        decipher.final(),
      ]).toString('utf8');
    },
  };
}

function keyId(key: Buffer): Buffer {
  return createHash('sha256').update('coppice key id').update(key).digest().subarray(0, 8);
}
