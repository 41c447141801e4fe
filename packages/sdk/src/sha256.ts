// SHA-256 over content that comes in pieces. Web Crypto hashes only what is in memory as a whole, and
// only on secure origins; so browsers compute it here, and Node uses its own.

export interface Sha256 {
  update(bytes: Uint8Array): void;
  /** In hexadecimal; ends it. */
  digest(): string;
}

export function createSha256(): Sha256 {
  const native = nodeCrypto()?.createHash('sha256');
  if (!native) return createPortableSha256();
  return {
    update: (bytes) => void native.update(bytes),
    digest: () => native.digest('hex'),
  };
}

interface NodeCrypto {
  createHash(name: 'sha256'): { update(bytes: Uint8Array): unknown; digest(as: 'hex'): string };
}

function nodeCrypto(): NodeCrypto | undefined {
  const { process } = globalThis as {
    process?: { getBuiltinModule?(name: string): NodeCrypto | undefined };
  };
  return process?.getBuiltinModule?.('node:crypto');
}

const fractions = (count: number, root: (prime: number) => number) => {
  const words = new Uint32Array(count);
  let found = 0;
  for (let candidate = 2; found < count; candidate++) {
    let prime = true;
    for (let factor = 2; factor * factor <= candidate; factor++)
      if (candidate % factor === 0) prime = false;
    if (prime) words[found++] = (root(candidate) % 1) * 2 ** 32;
  }
  return words;
};

/** FIPS 180-4. */
export function createPortableSha256(): Sha256 {
  const state = fractions(8, Math.sqrt);
  const constants = fractions(64, Math.cbrt);
  const schedule = new Uint32Array(64);
  const pending = new Uint8Array(64);
  let pendingBytes = 0;
  let totalBytes = 0;

  function block(bytes: Uint8Array, at: number): void {
    const w = schedule;
    for (let i = 0, o = at; i < 16; i++, o += 4)
      w[i] = (bytes[o]! << 24) | (bytes[o + 1]! << 16) | (bytes[o + 2]! << 8) | bytes[o + 3]!;
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15]!;
      const y = w[i - 2]!;
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
    }
    let a = state[0]! | 0;
    let b = state[1]! | 0;
    let c = state[2]! | 0;
    let d = state[3]! | 0;
    let e = state[4]! | 0;
    let f = state[5]! | 0;
    let g = state[6]! | 0;
    let h = state[7]! | 0;
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + constants[i]! + w[i]!) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    state[0]! += a;
    state[1]! += b;
    state[2]! += c;
    state[3]! += d;
    state[4]! += e;
    state[5]! += f;
    state[6]! += g;
    state[7]! += h;
  }

  function update(bytes: Uint8Array): void {
    totalBytes += bytes.length;
    let at = 0;
    if (pendingBytes > 0) {
      at = Math.min(64 - pendingBytes, bytes.length);
      pending.set(bytes.subarray(0, at), pendingBytes);
      pendingBytes += at;
      if (pendingBytes < 64) return;
      block(pending, 0);
      pendingBytes = 0;
    }
    for (; at + 64 <= bytes.length; at += 64) block(bytes, at);
    pending.set(bytes.subarray(at));
    pendingBytes = bytes.length - at;
  }

  return {
    update,
    digest() {
      const bits = totalBytes * 8;
      const padding = new Uint8Array((pendingBytes < 56 ? 56 : 120) - pendingBytes + 8);
      padding[0] = 0x80;
      const view = new DataView(padding.buffer);
      view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
      view.setUint32(padding.length - 4, bits >>> 0);
      update(padding);
      return Array.from(state, (word) => word.toString(16).padStart(8, '0')).join('');
    },
  };
}
