// The only place where a name or a text becomes part of SQL. Values go as parameters wherever
// Postgres takes them; utility statements (ALTER ROLE …) do not.

export function quoteIdent(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

export function quoteLiteral(text: string): string {
  const quoted = `'${text.replaceAll("'", "''")}'`;
  return text.includes('\\') ? ` E${quoted.replaceAll('\\', '\\\\')}` : quoted;
}
