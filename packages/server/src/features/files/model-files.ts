// For tests: what the files should do, in memory and in the plainest way.
import type { FileErrorCode } from '@coppice/contract';
import { FileError } from '../../kernel/files.ts';

interface Node {
  type: 'file' | 'directory' | 'symlink';
  mode: number;
  content: Uint8Array;
  target: string;
  children: Map<string, Node>;
}

interface Place {
  directory: Node;
  name: string;
  node: Node | undefined;
  /** Names from the root, without symbolic links. */
  path: string[];
}

const fail = (code: FileErrorCode): never => {
  throw new FileError(code, code);
};
const bytesOf = (path: string) => new TextEncoder().encode(path).length;
const node = (type: Node['type'], mode: number): Node => ({
  type,
  mode,
  content: new Uint8Array(),
  target: '',
  children: new Map(),
});

export class ModelFiles {
  #root = node('directory', 0o755);

  /** Runs one operation: all of it, or nothing if it throws. */
  attempt<T>(operation: (files: this) => T): T {
    const before = structuredClone(this.#root);
    try {
      return operation(this);
    } catch (error) {
      this.#root = before;
      throw error;
    }
  }

  #names(path: string): string[] {
    if (!path.startsWith('/') || bytesOf(path) > 4096) fail('EINVAL');
    const names = path.split('/').filter((name) => name !== '' && name !== '.');
    if (names.some((name) => name === '..' || bytesOf(name) > 255)) fail('EINVAL');
    return names;
  }

  #resolve(path: string, follow: boolean): Place {
    const root: Place = { directory: this.#root, name: '', node: this.#root, path: [] };
    let trail: Place[] = [root];
    let links = 0;
    const rest = this.#names(path);
    for (let name = rest.shift(); name !== undefined; name = rest.shift()) {
      const at = trail.at(-1)!;
      if (!at.node) return fail('ENOENT');
      if (at.node.type !== 'directory') return fail('ENOTDIR');
      if (name === '..') {
        if (trail.length > 1) trail.pop();
        continue;
      }
      const found = at.node.children.get(name);
      if (found?.type === 'symlink' && (follow || rest.length > 0)) {
        if (++links > 40) fail('EINVAL');
        if (found.target.startsWith('/')) trail = [root];
        rest.unshift(...found.target.split('/').filter((part) => part !== '' && part !== '.'));
        continue;
      }
      trail.push({ directory: at.node, name, node: found, path: [...at.path, name] });
    }
    return trail.at(-1)!;
  }

  #find(path: string, follow = true): Place & { node: Node } {
    const place = this.#resolve(path, follow);
    if (!place.node) return fail('ENOENT');
    return place as Place & { node: Node };
  }

  #file(path: string): Node {
    const { node } = this.#find(path);
    return node.type === 'directory' ? fail('EISDIR') : node;
  }

  #describe({ node, path }: Place) {
    const { type, mode, content, target } = node!;
    return {
      path: `/${path.join('/')}`,
      name: path.at(-1) ?? '',
      type,
      mode,
      size: content.length,
      target: type === 'symlink' ? target : null,
    };
  }

  #open(path: string, mode: number | undefined, exclusive: boolean, parents: boolean): Place {
    if (parents) this.#makeDirectories(this.#names(path).slice(0, -1), 0o755);
    const place = this.#resolve(path, !exclusive);
    if (place.node?.type === 'directory') fail('EISDIR');
    if (place.node && exclusive) fail('EEXIST');
    if (!place.node) {
      place.node = node('file', mode ?? 0o644);
      place.directory.children.set(place.name, place.node);
    }
    return place;
  }

  #makeDirectories(names: string[], mode: number): void {
    for (let count = 1; count <= names.length; count++) {
      const path = `/${names.slice(0, count).join('/')}`;
      const place = this.#resolve(path, false);
      if (!place.node) place.directory.children.set(place.name, node('directory', mode));
      else if (this.#find(path).node.type !== 'directory') fail('ENOTDIR');
    }
  }

  stat(path: string, follow: boolean) {
    return this.#describe(this.#find(path, follow));
  }

  readdir(path: string) {
    const place = this.#find(path);
    if (place.node.type !== 'directory') fail('ENOTDIR');
    return [...place.node.children]
      .map(([name, child]) =>
        this.#describe({
          directory: place.node,
          name,
          node: child,
          path: [...place.path, name],
        }),
      )
      .sort((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)));
  }

  readlink(path: string): string {
    const { node } = this.#find(path, false);
    return node.type === 'symlink' ? node.target : fail('EINVAL');
  }

  read(path: string, offset = 0, length = Number.MAX_SAFE_INTEGER): Uint8Array {
    return this.#file(path).content.slice(offset, offset + length);
  }

  write(
    path: string,
    content: Uint8Array,
    options: { mode?: number; exclusive?: boolean; parents?: boolean } = {},
  ) {
    const { mode, exclusive = false, parents = false } = options;
    const place = this.#open(path, mode, exclusive, parents);
    place.node!.content = content.slice();
    return this.#describe(place);
  }

  append(path: string, content: Uint8Array) {
    const place = this.#open(path, undefined, false, false);
    const old = place.node!.content;
    place.node!.content = overlay(old, old.length, content);
    return this.#describe(place);
  }

  pwrite(path: string, offset: number, content: Uint8Array) {
    const file = this.#file(path);
    if (content.length > 0) file.content = overlay(file.content, offset, content);
    return this.#describe(this.#find(path));
  }

  truncate(path: string, size: number) {
    const file = this.#file(path);
    const content = new Uint8Array(size);
    content.set(file.content.subarray(0, size));
    file.content = content;
    return this.#describe(this.#find(path));
  }

  mkdir(path: string, mode: number, recursive: boolean) {
    if (recursive) this.#makeDirectories(this.#names(path), mode);
    else {
      const place = this.#resolve(path, false);
      if (place.node) fail('EEXIST');
      place.directory.children.set(place.name, node('directory', mode));
    }
    return this.#describe(this.#find(path, recursive));
  }

  unlink(path: string): void {
    const place = this.#find(path, false);
    if (place.node.type === 'directory') fail('EISDIR');
    place.directory.children.delete(place.name);
  }

  rm(path: string, recursive: boolean, force: boolean): void {
    const place = this.#resolve(path, false);
    if (!place.node) {
      if (!force) fail('ENOENT');
      return;
    }
    if (place.node === this.#root) fail('EINVAL');
    if (!recursive && place.node.children.size > 0) fail('ENOTEMPTY');
    place.directory.children.delete(place.name);
  }

  rename(path: string, to: string) {
    const from = this.#find(path, false);
    const target = this.#resolve(to, false);
    if (from.node === this.#root || target.node === this.#root) fail('EINVAL');
    if (from.node === target.node) return this.#describe(target);
    if (`/${target.path.join('/')}/`.startsWith(`/${from.path.join('/')}/`)) fail('EINVAL');
    const [movesDirectory, overDirectory] = [from, target].map(
      (place) => place.node?.type === 'directory',
    );
    if (target.node) {
      if (overDirectory && !movesDirectory) fail('EISDIR');
      if (!overDirectory && movesDirectory) fail('ENOTDIR');
      if (target.node.children.size > 0) fail('ENOTEMPTY');
    }
    from.directory.children.delete(from.name);
    target.directory.children.set(target.name, from.node);
    return this.#describe({ ...target, node: from.node });
  }

  symlink(path: string, target: string) {
    const place = this.#resolve(path, false);
    if (place.node) fail('EEXIST');
    if (target === '' || bytesOf(target) > 4096) fail('EINVAL');
    place.directory.children.set(place.name, { ...node('symlink', 0o777), target });
    return this.#describe(this.#find(path, false));
  }

  chmod(path: string, mode: number) {
    const place = this.#find(path);
    place.node.mode = mode;
    return this.#describe(place);
  }

  /** Every file there is, with its content. */
  *everything(): Generator<ReturnType<ModelFiles['stat']> & { content: Uint8Array }> {
    const directories: Place[] = [this.#find('/')];
    for (let place = directories.pop(); place; place = directories.pop())
      for (const [name, child] of place.node!.children) {
        const path = [...place.path, name];
        const below = { directory: place.node!, name, node: child, path };
        yield { ...this.#describe(below), content: child.content };
        if (child.type === 'directory') directories.push(below);
      }
  }
}

function overlay(old: Uint8Array, offset: number, content: Uint8Array): Uint8Array {
  const merged = new Uint8Array(Math.max(old.length, offset + content.length));
  merged.set(old);
  merged.set(content, offset);
  return merged;
}
