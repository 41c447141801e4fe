// One table of attacks against one running sandbox: longer than other files, so that it can be read as a list.
// Code that means harm, each piece in the real sandbox. None succeeds, and none disturbs the
// neighbour: a function of somebody else that is called all the while.
import { execFileSync } from 'node:child_process';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startTestRuntime, type TestRuntime } from './test-runtime.ts';

let sandbox: TestRuntime;
let reached: string[] = [];
let web: Server;
let webPort: number;
let forbiddenPort: number;
let tcpConnections = 0;
const tcp = createTcpServer((socket) => {
  tcpConnections++;
  socket.destroy();
});

beforeAll(async () => {
  web = createServer((request, response) => {
    reached.push(`${request.headers.host}${request.url}`);
    const to = /^\/redirect\?to=(.*)$/.exec(request.url ?? '')?.[1];
    if (to) response.writeHead(302, { location: decodeURIComponent(to) }).end();
    else response.end('hello');
  });
  await new Promise<void>((done) => web.listen(0, '127.0.0.1', done));
  await new Promise<void>((done) => tcp.listen(0, done));
  webPort = (web.address() as AddressInfo).port;
  forbiddenPort = (tcp.address() as AddressInfo).port;
  sandbox = startTestRuntime({ privateAllowed: [`127.0.0.1:${webPort}`] });
  expect(await sandbox.runtime.ready()).toBe('isolated');
});

// The neighbour: its answers must be right and prompt whatever the others do.
let watching = true;
let neighbour: Promise<{ calls: number; failures: string[] }>;
beforeAll(() => {
  neighbour = (async () => {
    const failures: string[] = [];
    let calls = 0;
    while (watching) {
      const outcome = await sandbox.run('export const handler = ({ n }) => n + 1', {
        name: 'neighbour',
        input: { n: calls },
        timeoutMs: 10_000,
      });
      if (outcome.status !== 'completed' || outcome.resultJson !== String(calls + 1))
        failures.push(JSON.stringify(outcome));
      calls++;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return { calls, failures };
  })();
});

afterAll(async () => {
  watching = false;
  const { calls, failures } = await neighbour;
  await sandbox.close();
  web.close();
  tcp.close();
  expect(failures).toEqual([]);
  expect(calls).toBeGreaterThan(50);
});

describe('resources', () => {
  test('an infinite loop is killed, and what it had printed is kept', async () => {
    const outcome = await sandbox.run(
      'export const handler = () => { console.log("begun"); while (true); }',
      { timeoutMs: 300 },
    );
    expect(outcome).toEqual({ status: 'timed_out', logs: ['INFO begun'] });
  });

  test('an infinite loop of microtasks is killed', async () => {
    const source =
      'export const handler = () => { const f = () => Promise.resolve().then(f); return f(); }';
    expect((await sandbox.run(source, { timeoutMs: 300 })).status).toBe('timed_out');
  });

  test.each([
    ['objects', 'const a = []; while (true) a.push(new Array(100000).fill(1.5));'],
    ['buffers', 'const a = []; while (true) a.push(new Uint8Array(10000000).fill(1));'],
    [
      'strings',
      'let s = "x"; const a = []; while (true) { a.push((s + a.length).repeat(5000000).split("")); }',
    ],
    [
      'WebAssembly memory',
      'const m = new WebAssembly.Memory({ initial: 1, maximum: 65536 }); while (true) { m.grow(160); new Uint8Array(m.buffer).fill(1); }',
    ],
    [
      'workers',
      `const code = "data:text/javascript," + encodeURIComponent("globalThis.a = new Uint8Array(5e6).fill(1); setInterval(() => {}, 1000)");
       const all = []; for (let i = 0; i < 500; i++) { all.push(new Worker(code, { type: "module" })); await new Promise((r) => setTimeout(r, 5)); }
       await new Promise(() => {});`,
    ],
  ])('a memory bomb of %s ends its own process only', async (_name, body) => {
    const outcome = await sandbox.run(`export const handler = async () => { ${body} }`);
    expect(outcome.status).toBe('failed');
    // Without a cgroup the allocation itself is refused, in the engine's own words.
    expect(JSON.stringify(outcome)).toMatch(/memory|allocat/i);
  });

  test('WebAssembly that never returns is killed', async () => {
    // (module (func (export "f") (loop br 0)))
    const bytes =
      '0,97,115,109,1,0,0,0,1,4,1,96,0,0,3,2,1,0,7,5,1,1,102,0,0,10,9,1,7,0,3,64,12,0,11,11';
    const outcome = await sandbox.run(
      `export const handler = async () => { const { instance } = await WebAssembly.instantiate(new Uint8Array([${bytes}])); instance.exports.f(); }`,
      { timeoutMs: 500 },
    );
    expect(outcome.status).toBe('timed_out');
  });

  test('100 MB of logs are cut off', async () => {
    const outcome = await sandbox.run(
      'export const handler = () => { const line = "x".repeat(10000); for (let i = 0; i < 10000; i++) console.log(line); return "done"; }',
    );
    expect(outcome.status).toBe('completed');
    expect(outcome.logs.join('\n').length).toBeLessThan(300_000);
  });

  test.each([
    ['a string', '"x".repeat(100_000_000)'],
    ['an array', 'new Array(20_000_000).fill(12345)'],
  ])('a result of 100 MB, %s, is refused', async (_name, expression) => {
    const outcome = await sandbox.run(`export const handler = () => ${expression}`, {
      memoryMb: 1024,
    });
    expect(outcome).toMatchObject({ status: 'failed', error: { message: /larger than 6 MiB/ } });
  });

  test('nothing runs after the return', async () => {
    const source = `let ticks = 0; globalThis.started ??= 0;
      export const handler = async ({ wait }) => {
        if (globalThis.started++ === 0) { setInterval(() => ticks++, 1); (async () => { while (true) { await new Promise((r) => setTimeout(r, 1)); ticks++; } })(); }
        else await new Promise((r) => setTimeout(r, wait));
        return ticks;
      }`;
    expect(await sandbox.result(source, { name: 'timers' })).toBe(0);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(await sandbox.result(source, { name: 'timers', input: { wait: 50 } })).toBe(0);
  });

  test('a loop after the return does not reach the next call', async () => {
    const source = `export const handler = ({ spin }) => {
      if (spin) queueMicrotask(() => Promise.resolve().then(() => Promise.resolve()).then(() => { setTimeout(() => {}, 0); const end = Date.now() + 60000; while (Date.now() < end); }));
      return 'ok';
    }`;
    const first = await sandbox.run(source, {
      name: 'spin',
      input: { spin: true },
      timeoutMs: 1000,
    });
    expect(['completed', 'timed_out']).toContain(first.status);
    expect(await sandbox.result(source, { name: 'spin', timeoutMs: 5000 })).toBe('ok');
  });
});

const attempt = (expression: string) =>
  `export const handler = async () => { try { const got = await (${expression}); return { got: String(got) }; } catch (error) { return { refused: String(error?.name ?? error) }; } }`;

describe('the host', () => {
  test.each([
    ['/etc/passwd', 'Deno.readTextFileSync("/etc/passwd")'],
    ['the environment', 'JSON.stringify(Deno.env.toObject())'],
    ['the environment of node', 'process.env.PATH.length'],
    ['/proc', '(await import("node:fs")).readFileSync("/proc/self/environ", "utf8")'],
    ['processes', '[...Deno.readDirSync("/proc")].length'],
    ['a program', 'new Deno.Command("/deno", { args: ["--version"] }).outputSync()'],
    [
      'a program of node',
      '(await import("node:child_process")).execFileSync("/deno", ["--version"])',
    ],
    ['native code', 'Deno.dlopen("/lib/x86_64-linux-gnu/libc.so.6", {})'],
    ['a native add-on', '(await import("node:process")).dlopen({ exports: {} }, "/tmp/x.node")'],
    ['host information', 'Deno.hostname()'],
    ['writing', 'Deno.writeTextFileSync("/tmp/x", "x")'],
    ['remote code', 'import(["https://deno.land/std/version.ts"].join())'],
    ['npm code', 'import(["npm:lodash"].join())'],
    ['jsr code', 'import(["jsr:@std/assert"].join())'],
    ['a local file as code', 'import(["file:///loader.js"].join())'],
    ['listing the sandbox', '[...Deno.readDirSync("/")].length'],
  ])('%s is out of reach', async (_name, expression) => {
    expect(await sandbox.result(attempt(expression))).toHaveProperty('refused');
  });

  test('even with every permission of Deno, the jail holds', async () => {
    const open = startTestRuntime({ jailedPermissions: ['-A', '--unstable-vsock'], spares: 1 });
    try {
      const seen = (await open.result(
        `export const handler = async () => {
          const tryTo = async (work) => { try { return await work(); } catch (error) { return 'refused'; } };
          return {
            root: [...Deno.readDirSync('/')].map((e) => e.name).sort(),
            etc: await tryTo(() => Deno.readTextFileSync('/etc/passwd')),
            data: await tryTo(() => [...Deno.readDirSync('${process.cwd()}')].length),
            write: await tryTo(() => { Deno.writeTextFileSync('/x', 'x'); return 'written'; }),
            dev: await tryTo(() => { Deno.writeTextFileSync('/deno', 'x'); return 'written'; }),
            environ: new TextDecoder().decode(Deno.readFileSync('/proc/self/environ')).split('\\0').map((v) => v.split('=')[0]).filter(Boolean).sort(),
            processes: [...Deno.readDirSync('/proc')].map((e) => e.name).filter((n) => /^\\d+$/.test(n)),
            uid: Deno.uid(),
            spawn: await tryTo(() => new Deno.Command('/deno', { args: ['--version'] }).outputSync().code),
            interfaces: await tryTo(() => Deno.networkInterfaces()),
            kill: await tryTo(() => { Deno.kill(1, 'SIGKILL'); return 'alive'; }),
            loopback: await tryTo(async () => { await Deno.connect({ hostname: '127.0.0.1', port: ${forbiddenPort} }); return 'connected'; }),
            vsock: await tryTo(async () => { await Deno.connect({ transport: 'vsock', cid: 2, port: 1 }); return 'connected'; }),
            capabilities: /CapEff:\\s*(\\w+)/.exec(Deno.readTextFileSync('/proc/self/status'))[1],
            seccomp: /Seccomp:\\s*(\\w+)/.exec(Deno.readTextFileSync('/proc/self/status'))[1],
          };
        }`,
      )) as Record<string, unknown>;
      expect(seen).toMatchObject({
        etc: 'refused',
        data: 'refused',
        write: 'refused',
        dev: 'refused',
        processes: ['1'],
        spawn: 'refused',
        interfaces: 'refused',
        kill: 'alive',
        loopback: 'refused',
        vsock: 'refused',
        capabilities: '0000000000000000',
        seccomp: '2',
      });
      expect(seen.uid).not.toBe(0);
      expect(seen.root).toEqual(
        expect.arrayContaining(['deno', 'dev', 'loader.js', 'proc', 'run', 'tmp']),
      );
      expect(
        (seen.root as string[]).filter(
          (name) => !/^(deno|dev|lib|lib64|usr|loader\.js|proc|run|tmp)$/.test(name),
        ),
      ).toEqual([]);
      expect((seen.environ as string[]).join()).not.toMatch(/PATH|USER|COPPICE|NODE/);
    } finally {
      await open.close();
    }
  });

  test('the environment shown by bubblewrap itself holds nothing of ours', async () => {
    const environments = execFileSync('sh', [
      '-c',
      'for p in $(pgrep -x bwrap); do tr "\\0" "\\n" < /proc/$p/environ 2>/dev/null; done; true',
    ]).toString();
    expect(environments).not.toMatch(/PATH=|HOME=\/root/);
  });
});

describe('the network', () => {
  // biome-ignore format: a list
  const spellings = [
    '127.0.0.1', 'localhost', '127.1', '0x7f000001', '2130706433', '0177.0.0.1', '0.0.0.0', '127.127.127.127',
    '[::1]', '[::]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '[64:ff9b::7f00:1]', '169.254.169.254',
    '10.0.0.1', '192.168.0.1', 'localhost.', 'LOCALHOST',
  ];

  test.each(spellings)('%s is refused although the allowlist names it', async (host) => {
    const before = tcpConnections;
    const source = attempt(
      `fetch("http://${host}:${forbiddenPort}/").then((r) => r.ok ? r.text() : Promise.reject(new Error("status " + r.status)))`,
    );
    const answer = await sandbox.result(source, {
      allowlist: spellings.flatMap((name) => [
        name.toLowerCase(),
        `${name.toLowerCase()}:${forbiddenPort}`,
      ]),
    });
    expect(answer).toHaveProperty('refused');
    expect(tcpConnections).toBe(before);
  });

  test('raw connections lead nowhere', async () => {
    const before = tcpConnections;
    for (const expression of [
      `Deno.connect({ hostname: "127.0.0.1", port: ${forbiddenPort} })`,
      `Deno.connect({ hostname: "::1", port: ${forbiddenPort} })`,
      'Deno.connect({ hostname: "169.254.169.254", port: 80 })',
      'Deno.connect({ transport: "unix", path: "/var/run/postgresql/.s.PGSQL.5432" })',
      'Deno.connect({ transport: "unix", path: "/run/other.sock" })',
      `new Promise((done, fail) => { import("node:net").then(({ connect }) => connect(${forbiddenPort}, "127.0.0.1").on("connect", done).on("error", fail)) })`,
      `new Promise((done, fail) => { const s = new WebSocket("ws://127.0.0.1:${forbiddenPort}"); s.onopen = done; s.onerror = () => fail(new Error("no")) })`,
      'Deno.resolveDns("example.com", "A")',
    ])
      expect(await sandbox.result(attempt(expression), { timeoutMs: 15_000 })).toHaveProperty(
        'refused',
      );
    expect(tcpConnections).toBe(before);
  });

  test('what is allowed can be reached, with body and headers', async () => {
    const source = `export const handler = async () => { const r = await fetch("http://127.0.0.1:${webPort}/x", { method: "POST", body: "b", headers: { a: "1" } }); return [r.status, await r.text()]; }`;
    expect(await sandbox.result(source, { allowlist: [`127.0.0.1:${webPort}`] })).toEqual([
      200,
      'hello',
    ]);
  });

  test('a host that is not on the list is refused', async () => {
    reached = [];
    const source = attempt(`fetch("http://127.0.0.1:${webPort}/x").then((r) => r.text())`);
    expect(await sandbox.result(source)).toHaveProperty('refused');
    expect(
      await sandbox.result(source, { allowlist: ['127.0.0.1:1', 'example.com'] }),
    ).toHaveProperty('refused');
    expect(reached).toEqual([]);
  });

  test('a redirect to a forbidden host is not followed', async () => {
    const before = tcpConnections;
    for (const target of [
      `http://127.0.0.1:${forbiddenPort}/`,
      `http://localhost:${webPort}/secret`,
      'http://169.254.169.254/latest/meta-data',
    ]) {
      reached = [];
      const url = `http://127.0.0.1:${webPort}/redirect?to=${encodeURIComponent(target)}`;
      const source = attempt(
        `fetch("${url}").then((r) => r.status === 403 ? Promise.reject(new Error("403")) : r.text())`,
      );
      expect(await sandbox.result(source, { allowlist: [`127.0.0.1:${webPort}`] })).toHaveProperty(
        'refused',
      );
      expect(reached).toHaveLength(1);
    }
    expect(tcpConnections).toBe(before);
  });

  test('the proxy, spoken to directly, checks as well', async () => {
    const before = tcpConnections;
    const source = `export const handler = async () => {
      const ask = async (text) => {
        const c = await Deno.connect({ transport: "unix", path: "/run/egress.sock" });
        await c.write(new TextEncoder().encode(text));
        const buffer = new Uint8Array(1000);
        const n = await c.read(buffer);
        c.close();
        return new TextDecoder().decode(buffer.subarray(0, n ?? 0)).split("\\r\\n")[0];
      };
      return [
        await ask("CONNECT 127.0.0.1:${forbiddenPort} HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n"),
        await ask("CONNECT 0x7f000001:${forbiddenPort} HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n"),
        await ask("GET http://127.0.0.1:${forbiddenPort}/ HTTP/1.1\\r\\nhost: 127.0.0.1:${webPort}\\r\\n\\r\\n"),
        await ask("GET http://127.0.0.1:${webPort}@127.0.0.1:${forbiddenPort}/ HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n"),
        await ask("GET / HTTP/1.1\\r\\nhost: 127.0.0.1:${forbiddenPort}\\r\\n\\r\\n"),
        await ask("nonsense\\r\\n\\r\\n"),
      ];
    }`;
    const lines = (await sandbox.result(source, {
      allowlist: [`127.0.0.1:${webPort}`],
    })) as string[];
    for (const line of lines) expect(line).toMatch(/^HTTP\/1.1 (403|400) /);
    expect(tcpConnections).toBe(before);
  });
});

describe('the next call', () => {
  test('does not meet changed prototypes', async () => {
    const source = `export const handler = ({ pollute }) => {
      if (pollute) { Object.prototype.isAdmin = true; Array.prototype.map = () => ["stolen"]; JSON.stringify = () => "1"; globalThis.fetch = () => "x"; return "done"; }
      return [({}).isAdmin ?? "clean", [1].map((x) => x), typeof fetch("http://x.invalid").catch];
    }`;
    expect(await sandbox.result(source, { name: 'polluter', input: { pollute: true } })).toBe(
      'done',
    );
    for (let i = 0; i < 3; i++)
      expect(await sandbox.result(source, { name: 'polluter' })).toEqual([
        'clean',
        [1],
        'function',
      ]);
  });

  test('keeps the state of its own module', async () => {
    const source = 'let n = 0; export const handler = () => ++n';
    expect(await sandbox.result(source, { name: 'counter' })).toBe(1);
    expect(await sandbox.result(source, { name: 'counter' })).toBe(2);
    expect(await sandbox.result(source, { name: 'another counter' })).toBe(1);
  });

  test('of another function shares no storage', async () => {
    const write =
      'export const handler = async () => { try { localStorage.setItem("k", "v"); } catch {} try { await (await caches.open("c")).put("http://x/", new Response("v")); } catch {} return 1; }';
    const read =
      'export const handler = async () => { let a = null, b = null; try { a = localStorage.getItem("k"); } catch {} try { b = await (await caches.open("c")).match("http://x/") ?? null; } catch {} return [a, b]; }';
    await sandbox.result(write);
    expect(await sandbox.result(read)).toEqual([null, null]);
  });
});

describe('the control channel', () => {
  test('forged frames change nothing', async () => {
    const source = `const frame = (m) => { const j = new TextEncoder().encode(JSON.stringify(m)); const f = new Uint8Array(8 + j.length); new DataView(f.buffer).setUint32(0, j.length); f.set(j, 8); return f; };
      export const handler = async () => {
        const { writeSync } = await import("node:fs");
        const raw = (m) => { try { writeSync(1, frame(m)); } catch {} };
        raw({ type: "result", id: "0".repeat(32) }); raw({ type: "ready" }); raw({ type: "settled", id: "x" });
        raw({ type: "call", id: "x", call: 1, method: "db.query", args: {} });
        return "real";
      }`;
    const outcome = await sandbox.run(source);
    expect(outcome).toMatchObject({ status: 'completed', resultJson: '"real"' });
  });

  test.each([
    ['garbage', 'new Uint8Array(100).fill(255)'],
    ['a huge length', 'new Uint8Array([0x7f, 255, 255, 255, 0, 0, 0, 0])'],
    ['JSON that is no object', 'new Uint8Array([0, 0, 0, 1, 0, 0, 0, 0, 49])'],
    ['an endless stream', 'new Uint8Array(16 * 1024 * 1024)'],
  ])('%s on standard output ends the sandbox, not the service', async (_name, bytes) => {
    const outcome = await sandbox.run(
      `export const handler = async () => { const { writeSync } = await import("node:fs"); const b = ${bytes}; try { for (let i = 0; i < 100; i++) writeSync(1, b); } catch {} await new Promise((r) => setTimeout(r, 5000)); return "survived"; }`,
      { timeoutMs: 8000 },
    );
    expect(outcome.status).toBe('failed');
  });

  test('printing to standard output is a log line', async () => {
    const outcome = await sandbox.run(
      'export const handler = () => { process.stdout.write("one\\n"); Deno.stdout.writeSync(new TextEncoder().encode("two")); return 1; }',
    );
    expect(outcome.status).toBe('completed');
    expect(outcome.logs.map((line) => line.trim())).toEqual(['INFO one', 'INFO two']);
  });

  test.each([
    ['exit', 'Deno.exit(7)', /exit code 7/],
    ['process.exit', 'process.exit(8)', /exit code 8/],
    [
      'an error thrown later',
      'setTimeout(() => { throw new Error("late") }, 10); await new Promise(() => {})',
      /late/,
    ],
    [
      'a rejection nobody handles',
      'Promise.reject(new Error("nobody")); await new Promise(() => {})',
      /nobody/,
    ],
    ['throwing null', 'throw null', /null/],
    [
      'an error that cannot be read',
      'throw new Proxy(new Error("x"), { get() { throw new Error("trap") } })',
      /.*/,
    ],
    ['a result that cannot be JSON', 'return 10n', /BigInt/],
    ['a result that refers to itself', 'const a = {}; a.a = a; return a', /circular/],
    ['toJSON that throws', 'return { toJSON() { throw new Error("no json") } }', /no json/],
  ])('%s ends the run as failed', async (_name, body, message) => {
    const outcome = await sandbox.run(`export const handler = async () => { ${body} }`, {
      timeoutMs: 5000,
    });
    expect(outcome.status).toBe('failed');
    expect(outcome.status === 'failed' && outcome.error.message).toMatch(message);
  });

  test('a flood of calls is held back', async () => {
    let atOnce = 0;
    let most = 0;
    const outcome = await sandbox.run(
      'export const handler = async (_, ctx) => (await Promise.allSettled(Array.from({ length: 500 }, () => ctx.db.query("select 1")))).filter((r) => r.status === "rejected").length',
      {
        onCall: async () => {
          most = Math.max(most, ++atOnce);
          await new Promise((resolve) => setTimeout(resolve, 20));
          atOnce--;
          return { value: { columns: [], rows: [], rowCount: 0, command: '' } };
        },
      },
    );
    expect(outcome.status).toBe('completed');
    expect(most).toBeLessThanOrEqual(32);
  });
});
