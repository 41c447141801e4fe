// Writes tar archives (POSIX ustar) in memory, in browsers and in Node.
// https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html#tag_20_94_13_06

const blockBytes = 512;
const text = new TextEncoder();

export function packTar(files: Record<string, string | Uint8Array>): Uint8Array {
  const blocks: Uint8Array[] = [];
  for (const name of Object.keys(files).sort()) {
    const content = files[name]!;
    const bytes = typeof content === 'string' ? text.encode(content) : content;
    blocks.push(header(name, bytes.length), bytes, padding(bytes.length));
  }
  blocks.push(new Uint8Array(2 * blockBytes));
  const tar = new Uint8Array(blocks.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const block of blocks) {
    tar.set(block, at);
    at += block.length;
  }
  return tar;
}

function header(path: string, size: number): Uint8Array {
  const block = new Uint8Array(blockBytes);
  const put = (value: string, at: number) => block.set(text.encode(value), at);
  const octal = (value: number, digits: number) => value.toString(8).padStart(digits, '0');
  const [prefix, name] = split(path);
  put(name, 0);
  put(octal(0o644, 7), 100);
  put(octal(0, 7), 108);
  put(octal(0, 7), 116);
  put(octal(size, 11), 124);
  put(octal(0, 11), 136);
  put(' '.repeat(8), 148);
  put('0', 156);
  put('ustar\x0000', 257);
  put(prefix, 345);
  put(
    `${octal(
      block.reduce((sum, byte) => sum + byte, 0),
      6,
    )}\0 `,
    148,
  );
  return block;
}

/** The name has 100 bytes; what does not fit goes, up to a slash, into a prefix of 155. */
function split(path: string): [prefix: string, name: string] {
  const bytes = (part: string) => text.encode(part).length;
  if (bytes(path) <= 100) return ['', path];
  for (let at = path.indexOf('/'); at !== -1; at = path.indexOf('/', at + 1))
    if (bytes(path.slice(at + 1)) <= 100 && bytes(path.slice(0, at)) <= 155)
      return [path.slice(0, at), path.slice(at + 1)];
  throw new RangeError(`the path ${path} is too long for an archive`);
}

const padding = (length: number) =>
  new Uint8Array((blockBytes - (length % blockBytes)) % blockBytes);
