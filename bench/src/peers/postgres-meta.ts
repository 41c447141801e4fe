// Supabase's postgres-meta as it is shipped, on the instance's socket (given as argument).
import { createServer } from 'node:net';

const port = await new Promise<number>((resolve) => {
  const server = createServer().listen(0, '127.0.0.1', () => {
    const address = server.address();
    server.close(() => resolve(typeof address === 'object' ? (address?.port ?? 0) : 0));
  });
});
process.env.PG_META_HOST = '127.0.0.1';
process.env.PG_META_PORT = String(port);
process.env.PG_META_DB_URL = `postgresql://admin@localhost/postgres?host=${encodeURIComponent(process.argv[2]!)}&port=5432`;
// Not among the package's exports; its `npm start` runs it the same way.
await import(
  new URL('../../node_modules/@supabase/postgres-meta/dist/server/server.js', import.meta.url).href
);

const url = `http://127.0.0.1:${port}`;
for (;;) {
  const answered = await fetch(`${url}/health`).then(
    (response) => response.ok,
    () => false,
  );
  if (answered) break;
  await new Promise((resolve) => setTimeout(resolve, 50));
}
process.send?.({ url });
