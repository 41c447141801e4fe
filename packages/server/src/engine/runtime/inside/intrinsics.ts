// Whether the language's own objects are still what they were: a function that changed them (by
// accident or through "prototype pollution" in what it was sent) must not meet its next caller.

const { ownKeys, getOwnPropertyDescriptor, getPrototypeOf, apply } = Reflect;
const { is } = Object;
const push = Array.prototype.push;

// biome-ignore format: a list of names
const globalNames = [
  'Object', 'Function', 'Array', 'String', 'Number', 'Boolean', 'Symbol', 'BigInt', 'Date', 'RegExp',
  'Promise', 'Map', 'Set', 'WeakMap', 'Proxy', 'Reflect', 'JSON', 'Math', 'Error', 'TypeError',
  'ArrayBuffer', 'Uint8Array', 'parseInt', 'parseFloat', 'decodeURIComponent', 'encodeURIComponent',
  'URL', 'URLSearchParams', 'Headers', 'Request', 'Response', 'fetch', 'crypto', 'console', 'Buffer',
  'setTimeout', 'setInterval', 'queueMicrotask', 'structuredClone', 'atob', 'btoa',
];

/** Tuned by many libraries, and of no consequence to anybody else. */
const free = new Set<PropertyKey>(['stackTraceLimit', 'prepareStackTrace']);

interface Seen {
  object: Record<PropertyKey, unknown>;
  keyCount: number;
  /** Data properties and what they held. Reading an accessor could do something; it is counted. */
  keys: PropertyKey[];
  values: unknown[];
}

/** Remembers them as they are now; the result says whether they have changed since. */
export function watchIntrinsics(): () => boolean {
  const seen: Seen[] = [];
  for (const object of collect()) {
    const all = ownKeys(object).filter((key) => !free.has(key));
    const keys = all.filter((key) => 'value' in getOwnPropertyDescriptor(object, key)!);
    const values = keys.map((key) => (object as Seen['object'])[key]);
    seen.push({ object: object as Seen['object'], keyCount: all.length, keys, values });
  }
  const scope = globalThis as Record<string, unknown>;
  const named = globalNames.filter((name) => hasValue(scope, name));
  const globals = named.map((name) => scope[name]);

  return () => {
    for (let g = 0; g < named.length; g++) if (scope[named[g]!] !== globals[g]) return true;
    for (let s = 0; s < seen.length; s++) if (changed(seen[s]!)) return true;
    return false;
  };
}

function changed({ object, keyCount, keys, values }: Seen): boolean {
  const now = ownKeys(object);
  let counted = 0;
  for (let i = 0; i < now.length; i++)
    if (now[i] !== 'stackTraceLimit' && now[i] !== 'prepareStackTrace') counted++;
  if (counted !== keyCount) return true;
  for (let k = 0; k < keys.length; k++) if (!is(object[keys[k]!], values[k])) return true;
  return false;
}

const hasValue = (object: object, key: PropertyKey) =>
  getOwnPropertyDescriptor(object, key)?.value !== undefined;

/** The named globals, their prototypes, and the intrinsics that have no name. */
function collect(): Set<object> {
  const objects = new Set<object>();
  const roots: unknown[] = [
    getPrototypeOf(Int8Array),
    getPrototypeOf([][Symbol.iterator]()),
    getPrototypeOf(new Map()[Symbol.iterator]()),
    getPrototypeOf(new Set()[Symbol.iterator]()),
    getPrototypeOf(''[Symbol.iterator]()),
    getPrototypeOf(async () => {}),
    getPrototypeOf(function* () {}),
    getPrototypeOf(async function* () {}),
  ];
  for (const name of globalNames)
    apply(push, roots, [getOwnPropertyDescriptor(globalThis, name)?.value]);
  for (const root of roots) {
    add(objects, root);
    if (isObject(root)) add(objects, getOwnPropertyDescriptor(root, 'prototype')?.value);
  }
  objects.delete(globalThis);
  return objects;
}

function add(objects: Set<object>, value: unknown): void {
  for (
    let object = value;
    isObject(object) && !objects.has(object);
    object = getPrototypeOf(object)
  )
    objects.add(object);
}

const isObject = (value: unknown): value is object =>
  (typeof value === 'object' && value !== null) || typeof value === 'function';
