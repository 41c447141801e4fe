// The way out of a sandbox. Its network namespace is empty but for a loopback of its own; the
// proxy of the service (../egress.ts) is a Unix socket. Deno's fetch knows proxies by TCP only, so
// a listener on that loopback hands its connections on to the socket.

interface Connection {
  readable: ReadableStream<Uint8Array>;
  writable: WritableStream<Uint8Array>;
  close(): void;
}
declare const Deno: {
  listen(options: { hostname: string; port: number }): AsyncIterable<Connection>;
  connect(options: { transport: 'unix'; path: string }): Promise<Connection>;
};

const proxyPort = 3128;
const proxySocket = '/run/egress.sock';

export function bridgeEgress(): void {
  const { listen, connect } = Deno;
  const listener = listen({ hostname: '127.0.0.1', port: proxyPort });
  void (async () => {
    for await (const inner of listener) {
      try {
        const outer = await connect({ transport: 'unix', path: proxySocket });
        inner.readable.pipeTo(outer.writable).catch(() => {});
        outer.readable.pipeTo(inner.writable).catch(() => {});
      } catch {
        inner.close();
      }
    }
  })();
}

/** The proxy decides; this only says why, where Deno would speak of a failed tunnel. */
export function guardFetch(allowlist: readonly string[]): void {
  const native = globalThis.fetch;
  globalThis.fetch = async function fetch(input, init) {
    const request = new Request(input, init);
    const { hostname, port, protocol } = new URL(request.url);
    if (protocol === 'http:' || protocol === 'https:') {
      const target = `${hostname}:${port || (protocol === 'https:' ? '443' : '80')}`;
      if (!allowlist.some((entry) => covers(entry, hostname, target)))
        throw new TypeError(`${target} is not in the function's network_allowlist`);
    }
    return native(request);
  };
}

function covers(entry: string, hostname: string, target: string): boolean {
  const wanted = entry.toLowerCase();
  const subject = /:\d+$/.test(wanted) && !/^\[[^\]]*\]$/.test(wanted) ? target : hostname;
  return wanted.startsWith('*.') ? subject.endsWith(wanted.slice(1)) : subject === wanted;
}
