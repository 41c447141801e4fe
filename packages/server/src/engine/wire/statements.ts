// Where one statement ends and the next begins, by the rules psql uses for its semicolons
// (src/fe_utils/psqlscan.l). Nothing that must be safe rests on it: pieces are sent as single
// statements, and the server refuses one that is really two.

export interface Statement {
  /** Indexes into the text, in UTF-16 units; without the semicolon. */
  start: number;
  end: number;
  /** Its first words in lower case: what kind of statement it is. */
  words: readonly string[];
}

const token =
  /--[^\r\n]*|\/\*|'|"|\$(?:[A-Za-z_\u0080-\uffff][A-Za-z0-9_\u0080-\uffff]*)?\$|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*|\d[\w.]*|[();]/g;
const wordsKept = 4;

export function splitStatements(text: string): Statement[] {
  const statements: Statement[] = [];
  let start = 0;
  let words: string[] = [];
  let hasContent = false;
  let parentheses = 0;
  let blocks = 0;
  let at = 0;

  function finish(end: number): void {
    if (hasContent || /\S/.test(withoutComments(text, start, end)))
      statements.push({ start, end, words });
    start = end + 1;
    words = [];
    hasContent = false;
    parentheses = 0;
    blocks = 0;
  }

  while (at < text.length) {
    token.lastIndex = at;
    const match = token.exec(text);
    if (!match) break;
    const found = match[0];
    at = match.index + found.length;
    if (found.startsWith('--')) continue;
    if (found === '/*') at = endOfComment(text, at);
    else if (found === "'") {
      hasContent = true;
      const before = text[match.index - 1];
      const escaped =
        (before === 'e' || before === 'E') &&
        !/[\w$\u0080-\uffff]/.test(text[match.index - 2] ?? ' ');
      at = endOfQuoted(text, at, "'", escaped);
    } else if (found === '"') {
      hasContent = true;
      at = endOfQuoted(text, at, '"', false);
    } else if (found.startsWith('$')) {
      hasContent = true;
      const close = text.indexOf(found, at);
      at = close < 0 ? text.length : close + found.length;
    } else if (found === '(') {
      hasContent = true;
      parentheses++;
    } else if (found === ')') {
      hasContent = true;
      parentheses = Math.max(0, parentheses - 1);
    } else if (found === ';') {
      if (parentheses === 0 && blocks === 0) finish(match.index);
    } else {
      hasContent = true;
      const word = found.toLowerCase();
      if (words.length < wordsKept) words.push(word);
      // BEGIN ATOMIC … END of a function's body holds semicolons of its own.
      if (parentheses === 0 && definesRoutine(words)) {
        if (word === 'begin' || (word === 'case' && blocks > 0)) blocks++;
        else if (word === 'end' && blocks > 0) blocks--;
      }
    }
  }
  finish(text.length);
  return statements;
}

/** COPY from or to the client, who does not speak its protocol here. */
export function copiesThroughClient(text: string, { start, end, words }: Statement): boolean {
  return words[0] === 'copy' && /\b(?:stdin|stdout)\b/i.test(text.slice(start, end));
}

function definesRoutine([first, second, third, fourth]: readonly string[]): boolean {
  const kind = second === 'or' && third === 'replace' ? fourth : second;
  return first === 'create' && (kind === 'function' || kind === 'procedure');
}

/** Comments nest in Postgres. */
function endOfComment(text: string, start: number): number {
  const bound = /\/\*|\*\//g;
  bound.lastIndex = start;
  for (let depth = 1; depth > 0; ) {
    const match = bound.exec(text);
    if (!match) return text.length;
    depth += match[0] === '/*' ? 1 : -1;
  }
  return bound.lastIndex;
}

function endOfQuoted(text: string, start: number, quote: string, escaped: boolean): number {
  let at = start;
  for (;;) {
    const close = text.indexOf(quote, at);
    if (close < 0) return text.length;
    if (escaped) {
      const slash = text.indexOf('\\', at);
      if (slash >= 0 && slash < close) {
        at = slash + 2;
        continue;
      }
    }
    if (text[close + 1] !== quote) return close + 1;
    at = close + 2;
  }
}

function withoutComments(text: string, start: number, end: number): string {
  let left = '';
  let at = start;
  const bound = /--[^\r\n]*|\/\*/g;
  while (at < end) {
    bound.lastIndex = at;
    const match = bound.exec(text);
    if (!match || match.index >= end) break;
    left += text.slice(at, match.index);
    at = match[0] === '/*' ? endOfComment(text, bound.lastIndex) : bound.lastIndex;
  }
  return left + text.slice(Math.min(at, end), end);
}
