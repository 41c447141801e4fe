// Deploying a function from a folder:
//
//   await deployFunction(
//     { baseUrl, token, databaseId },
//     { name: 'report', entrypoint: 'index.handler', files: await readFolder('./report') },
//   );
//
// A small bundle travels inside the request; a large one goes into the database's own files first.
import { fileStreamBytes, type operations, type Static } from '@coppice/contract';
import { connectFiles } from './files.ts';
import { createSha256 } from './sha256.ts';
import { packTar } from './tar.ts';

type Deployment = Static<typeof operations.functions.deploy.body>;
export type DeployedFunction = Static<(typeof operations.functions.deploy.responses)[201]>;

export interface FunctionsTarget {
  baseUrl: string;
  /** An API token or a session token. */
  token: string;
  databaseId: string;
}

/** Contents by path: `{ 'index.ts': '…', 'lib/a.ts': '…' }`. */
export type BundleFiles = Record<string, string | Uint8Array>;

export type FunctionDeployment = Omit<Deployment, 'bundle_ref' | 'bundle_digest'> & {
  files: BundleFiles;
};

/** The service did not accept it. */
export class DeployError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.name = 'DeployError';
    this.status = status;
  }
}

/** Packs the files into one archive, uploads it, and deploys the function. */
export async function deployFunction(
  target: FunctionsTarget,
  { files, ...deployment }: FunctionDeployment,
): Promise<DeployedFunction> {
  const bundle = await packBundle(files);
  const sha256 = createSha256();
  sha256.update(bundle);
  const digest = sha256.digest();
  const inline = bundle.length < fileStreamBytes;
  const bundle_ref = inline
    ? `data:application/gzip;base64,${toBase64(bundle)}`
    : await upload(target, `/functions/${deployment.name}/${digest}.tar.gz`, bundle);
  return call(target, 'functions', {
    ...deployment,
    bundle_ref,
    bundle_digest: `sha256:${digest}`,
  });
}

/** The files as one `.tar.gz`; the same files give the same bytes. */
export async function packBundle(files: BundleFiles): Promise<Uint8Array> {
  const tar = new Blob([packTar(files) as Uint8Array<ArrayBuffer>]);
  const zipped = tar.stream().pipeThrough(new CompressionStream('gzip'));
  return new Uint8Array(await new Response(zipped).arrayBuffer());
}

/** Every file below a folder, in Node; `.git` is left out. */
export async function readFolder(folder: string): Promise<BundleFiles> {
  // Not imported, so that bundling for browsers needs to know nothing of Node.
  const { readdir, readFile } = process.getBuiltinModule('node:fs/promises');
  const { join, relative, sep } = process.getBuiltinModule('node:path');
  const files: BundleFiles = {};
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    const name = relative(folder, path).split(sep).join('/');
    if (entry.isFile() && !name.split('/').includes('.git')) files[name] = await readFile(path);
  }
  return files;
}

async function upload(target: FunctionsTarget, path: string, bundle: Uint8Array): Promise<string> {
  const { fs_websocket_url, admin_user, admin_password } = await call<{
    fs_websocket_url: string;
    admin_user: string;
    admin_password: string;
  }>(target, 'fs-connect');
  const files = await connectFiles({
    url: fs_websocket_url,
    username: admin_user.includes('.') ? admin_user : `${target.databaseId}.${admin_user}`,
    password: admin_password,
  });
  try {
    await files.write(path, bundle, { parents: true });
  } finally {
    files.close();
  }
  return `fs:${path}`;
}

async function call<T>(
  { baseUrl, token, databaseId }: FunctionsTarget,
  operation: string,
  body?: object,
): Promise<T> {
  const url = `${baseUrl.replace(/\/+$/, '')}/customer/databases/${encodeURIComponent(databaseId)}/${operation}`;
  const answer = await fetch(url, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(body ?? {}),
  });
  const content = (await answer.json()) as T & { message?: string };
  if (!answer.ok) throw new DeployError(answer.status, content.message ?? answer.statusText);
  return content;
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += 0x8000)
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}
