export interface JsonBounds {
  /** Objects and lists within one another. */
  maxDepth: number;
  /** Values, roughly: what commas, colons and brackets separate. */
  maxParts: number;
}

const backslash = 0x5c;

/**
 * Looks at a text before it is parsed: parsing, and walking through what was parsed, costs by the number of values and
 * by their nesting, of which some megabytes can hold millions. Long strings are passed over at the speed of a search.
 * @returns what is too much of it, undefined when nothing is. Says nothing about whether the text is JSON.
 */
export function beyondBounds(text: string, { maxDepth, maxParts }: JsonBounds): string | undefined {
  let depth = 0;
  let parts = 0;
  let strings = 0;
  // What is between these is passed over by the expression's own search.
  const structure = /["{}[\],:]/g;
  for (let match = structure.exec(text); match !== null; match = structure.exec(text)) {
    const [sign] = match;
    if (sign === '"') {
      // No JSON has two strings without something in between: parsing ends here at the latest.
      if (++strings > parts + 1) return undefined;
      structure.lastIndex = endOfString(text, match.index + 1) + 1;
    } else if (sign === "}" || sign === "]") {
      // Parsing ends here at the latest: nothing is open any more.
      if (--depth < 0) return undefined;
    } else {
      if (sign !== "," && sign !== ":" && ++depth > maxDepth)
        return `it is nested more than ${maxDepth} deep`;
      if (++parts > maxParts) return `it holds more than ${maxParts} values`;
    }
  }
  return undefined;
}

const quote = 0x22;
/** How much of a string is walked through when a search has found a quote that is escaped: there may be many. */
const stride = 1_024;

/** @returns where the closing quote is; the length of the text when there is none. */
function endOfString(text: string, from: number): number {
  for (let at = from; at < text.length; ) {
    const end = text.indexOf('"', at);
    if (end === -1) return text.length;
    let before = end;
    while (before > at && text.charCodeAt(before - 1) === backslash) before--;
    if ((end - before) % 2 === 0) return end;
    at = end + 1;
    // A search for each quote would cost more than the steps between them where they are close together.
    for (const stop = at + stride; at < stop; at++) {
      const code = text.charCodeAt(at);
      if (code === quote) return at;
      if (code === backslash) at++;
    }
  }
  return text.length;
}
