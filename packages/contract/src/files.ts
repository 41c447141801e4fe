// The messages of the files' WebSocket: what a client may ask, and what it gets. docs/files.md tells
// the protocol as a story; these are its shapes.
import { type Static, Type } from 'typebox';

export const fileErrorCodes = [
  'ENOENT',
  'EISDIR',
  'ENOTDIR',
  'EEXIST',
  'ENOTEMPTY',
  'EACCES',
  'EFBIG',
  'EINVAL',
  'EAUTH',
  'EPROTO',
  'EIO',
] as const;
export type FileErrorCode = (typeof fileErrorCodes)[number];

/** Why the service ended a connection; 1000, 1001 and 1009 have their usual meaning. */
export const fileCloseCodes = {
  protocol: 4400,
  authentication: 4401,
  revoked: 4403,
  idle: 4408,
  tooMany: 4429,
} as const;

/** Content of this size and more travels in binary frames. */
export const fileStreamBytes = 1_000_000;

export interface FileEntry {
  /** Without symbolic links on the way to it. */
  path: string;
  name: string;
  type: 'file' | 'directory' | 'symlink';
  /** Permission bits. Kept, not enforced: roles and scopes decide who may do what. */
  mode: number;
  size: number;
  mtime: string;
  ctime: string;
  birthtime: string;
  /** Of a symbolic link. */
  target: string | null;
}

export interface FileListing {
  entries: FileEntry[];
  /** Where the next page begins (`after`), or null at the end. */
  next: string | null;
}

export type FileEvent =
  | { type: 'created' | 'modified' | 'deleted'; path: string }
  | { type: 'renamed'; path: string; from: string }
  /** Changes may have been missed: look again. */
  | { type: 'rescan'; path: string };

const Path = Type.String({ description: 'absolute, at most 4096 bytes' });
const Mode = Type.Integer({ minimum: 0, maximum: 0o7777 });
const Count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const Flag = Type.Boolean();
const Stream = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER });
const Encoding = Type.Union([Type.Literal('utf8'), Type.Literal('base64')]);

/** Inline (`content`) or announced (`stream: true`, then binary frames, then `end`). */
const Content = {
  content: Type.Optional(Type.String()),
  encoding: Type.Optional(Encoding),
  stream: Type.Optional(Flag),
};

export const fileRequests = {
  auth: Type.Object({ username: Type.String(), password: Type.String() }),
  stat: Type.Object({ path: Path, follow: Type.Optional(Flag) }),
  readdir: Type.Object({
    path: Path,
    after: Type.Optional(Type.String()),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 10_000 })),
  }),
  read: Type.Object({
    path: Path,
    offset: Type.Optional(Count),
    length: Type.Optional(Count),
    encoding: Type.Optional(Encoding),
    stream: Type.Optional(Flag),
    window: Type.Optional(Type.Integer({ minimum: 65_536, maximum: 16_777_216 })),
  }),
  write: Type.Object({
    path: Path,
    ...Content,
    mode: Type.Optional(Mode),
    exclusive: Type.Optional(Flag),
    parents: Type.Optional(Flag),
  }),
  append: Type.Object({ path: Path, ...Content, mode: Type.Optional(Mode) }),
  pwrite: Type.Object({ path: Path, offset: Count, ...Content }),
  truncate: Type.Object({ path: Path, size: Type.Optional(Count) }),
  mkdir: Type.Object({
    path: Path,
    mode: Type.Optional(Mode),
    recursive: Type.Optional(Flag),
  }),
  unlink: Type.Object({ path: Path }),
  rm: Type.Object({ path: Path, recursive: Type.Optional(Flag), force: Type.Optional(Flag) }),
  rename: Type.Object({ path: Path, to: Path }),
  symlink: Type.Object({ path: Path, target: Type.String() }),
  readlink: Type.Object({ path: Path }),
  chmod: Type.Object({ path: Path, mode: Mode }),
  utimes: Type.Object({ path: Path, mtime: Type.String() }),
  batch_write: Type.Object({
    files: Type.Array(
      Type.Object({
        path: Path,
        content: Type.String(),
        encoding: Type.Optional(Encoding),
        mode: Type.Optional(Mode),
        exclusive: Type.Optional(Flag),
      }),
      { minItems: 1, maxItems: 10_000 },
    ),
    parents: Type.Optional(Flag),
  }),
  watch: Type.Object({ path: Path, recursive: Type.Optional(Flag) }),
  unwatch: Type.Object({ watch: Type.Union([Type.String(), Type.Number()]) }),
  end: Type.Object({ stream: Stream, sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }) }),
  abort: Type.Object({ stream: Stream }),
  /** Not answered: how many bytes of a download with a `window` have been used up. */
  ack: Type.Object({ stream: Stream, received: Count }),
};
export type FileOperation = keyof typeof fileRequests;
export type FileRequest<O extends FileOperation> = Static<(typeof fileRequests)[O]>;
