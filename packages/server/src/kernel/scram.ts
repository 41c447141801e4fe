// SCRAM-SHA-256 verifiers as Postgres stores them in pg_authid.rolpassword:
// SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>
import { createHash, createHmac, pbkdf2, randomBytes, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';

const derive = promisify(pbkdf2);
const iterations = 4096;
/** A role's owner can store a verifier of its own making; checking it must not take for ever. */
const maxIterations = 1_000_000;

export async function createVerifier(password: string): Promise<string> {
  const salt = randomBytes(16);
  const { storedKey, serverKey } = await keys(password, salt, iterations);
  return `SCRAM-SHA-256$${iterations}:${salt.toString('base64')}$${storedKey.toString('base64')}:${serverKey.toString('base64')}`;
}

export async function matchesVerifier(password: string, verifier: string): Promise<boolean> {
  const match = /^SCRAM-SHA-256\$(\d+):([^$]+)\$([^:]+):(.+)$/.exec(verifier);
  if (!match) return false;
  const [, rounds, salt, storedKey] = match;
  if (Number(rounds) < 1 || Number(rounds) > maxIterations) return false;
  const computed = await keys(password, Buffer.from(salt!, 'base64'), Number(rounds));
  const expected = Buffer.from(storedKey!, 'base64');
  return (
    expected.length === computed.storedKey.length && timingSafeEqual(expected, computed.storedKey)
  );
}

async function keys(password: string, salt: Buffer, rounds: number) {
  const salted = await derive(prepare(password), salt, rounds, 32, 'sha256');
  const hmac = (text: string) => createHmac('sha256', salted).update(text).digest();
  const storedKey = createHash('sha256').update(hmac('Client Key')).digest();
  return { storedKey, serverKey: hmac('Server Key') };
}

const spaces = /[\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000]/g;
const nothings =
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: joiners are what it removes
  /[\u00ad\u034f\u1806\u180b-\u180d\u200c\u200d\u2060\ufe00-\ufe0f\ufeff]/g;
const prohibited =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it finds
  /[\u0000-\u001f\u007f-\u009f\u06dd\u070f\u180e\u2028\u2029\ue000-\uf8ff\ufff9-\uffff]/;

/** SASLprep (RFC 4013) as far as Postgres goes: on prohibited characters the text stays raw. */
function prepare(password: string): string {
  const mapped = password.replace(spaces, ' ').replace(nothings, '').normalize('NFKC');
  return mapped === '' || prohibited.test(mapped) ? password : mapped;
}
