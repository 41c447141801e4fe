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
  /--[^\r\n]*|\/\*|'|"|\$(?:[A-Za-z_\u0080-\uffff][A-Za-z0-9_\u0080-\uffff]*)?\$|[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*|\d[\w.]*|\S/g;
const isWord = /^[A-Za-z_\u0080-\uffff]/;
const wordsKept = 4;
/** A text of more is no script that anyone wrote, and would take memory out of proportion. */
const statementLimit = 100_000;

export class TooManyStatements extends Error {
  constructor() {
    super(`more than ${statementLimit} statements: send them in several calls`);
  }
}

export function splitStatements(text: string): Statement[] {
  const statements: Statement[] = [];
  let start = 0;
  let words: string[] = [];
  let hasContent = false;
  let parentheses = 0;
  let blocks = 0;
  let at = 0;

  function finish(end: number): void {
    if (hasContent) {
      if (statements.length === statementLimit) throw new TooManyStatements();
      statements.push({ start, end, words });
    }
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
    } else if (found.startsWith('$') && found.length > 1) {
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
    } else if (!isWord.test(found)) hasContent = true;
    else {
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
  const code = quote.charCodeAt(0);
  for (let at = start; at < text.length; at++) {
    const current = text.charCodeAt(at);
    if (escaped && current === 0x5c) at++;
    else if (current === code) {
      if (text.charCodeAt(at + 1) !== code) return at + 1;
      at++;
    }
  }
  return text.length;
}
