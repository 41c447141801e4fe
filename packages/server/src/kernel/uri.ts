/** Percent-encodes everything that has a meaning in a URI, also what encodeURIComponent leaves. */
export function quoteUriPart(text: string): string {
  return encodeURIComponent(text.toWellFormed()).replaceAll(
    /[!'()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  );
}
