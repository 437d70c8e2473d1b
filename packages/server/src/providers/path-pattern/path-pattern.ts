import { BadRequest, TooLarge } from "../../ports/errors.ts";

/** Longer ones than any path are of no use. */
const lengthAtMost = 4_096;
const alternativesAtMost = 1_000;
/** Of all alternatives together. */
const expandedAtMost = 65_536;
/** Names of all alternatives together, and of one: what one name of a path is compared with at most. */
const componentsAtMost = 2_048;
const depthAtMost = 256;
/** What all comparisons of one search may cost, in characters and components looked at. */
const stepsAtMost = 60_000_000;
/** After so many, others have their turn. */
const stepsAlone = 50_000;

type Token =
  | { type: "star" }
  | { type: "any" }
  | { type: "literal"; character: number }
  | { type: "class"; negated: boolean; ranges: readonly (readonly [number, number])[] };

interface Component {
  /** `**`: any number of directories. */
  deep: boolean;
  /** Of its alternative. */
  last: boolean;
  /** A leading dot has to be written out. */
  fitsHidden: boolean;
  tokens: readonly Token[];
}

/**
 * Patterns of absolute paths: `*`, `?`, `[…]`, `{a,b}` and `**`, as the agent reads them. Time grows with the product of
 * the lengths and no faster, whatever the pattern is.
 */
export class PathPattern {
  /** Components of all alternatives, one after the other. */
  readonly #components: Component[] = [];
  readonly #starts: number[] = [];
  #matchesRoot = false;
  #steps = 0;
  /** The names of the path looked at last, and what is open after each: neighbours share their directories. */
  #names: string[] = [];
  #open: number[][];

  /** @throws BadRequest when it is too long, or has too many alternatives. */
  constructor(pattern: string) {
    if (pattern.length > lengthAtMost)
      throw new BadRequest(`the pattern is longer than ${lengthAtMost} characters`);
    for (const alternative of alternatives(pattern)) {
      const names = alternative
        .split("/")
        .filter((name) => name !== "" && name !== ".")
        // Neighbouring ** mean no more than one.
        .filter((name, index, all) => name !== "**" || all[index - 1] !== "**");
      if (names.length > depthAtMost) throw new BadRequest(`the pattern has more than ${depthAtMost} names`);
      if (this.#components.length + names.length > componentsAtMost)
        throw new BadRequest(`the alternatives of the pattern have more than ${componentsAtMost} names`);
      if (names.length === 0) this.#matchesRoot = true;
      else this.#starts.push(this.#components.length);
      names.forEach((name, index) => {
        const tokens = tokensOf(name);
        const [first] = tokens;
        const fitsHidden = first?.type === "literal" && first.character === dot;
        const last = index === names.length - 1;
        this.#components.push({ deep: name === "**", last, fitsHidden, tokens });
      });
    }
    this.#open = [this.#closed(this.#starts)];
  }

  /** What this has cost until now. */
  get steps(): number {
    return this.#steps;
  }

  /** Fastest for paths in the order of a tree. */
  matches(path: string): boolean {
    const steps = path.split("/");
    this.#steps += steps.length;
    const names = steps.filter((name) => name !== "");
    if (names.length === 0) return this.#matchesRoot;
    let known = 0;
    // The last name is looked at in any case: whether it matches is not kept.
    while (known < names.length - 1 && known < this.#names.length && names[known] === this.#names[known])
      known += 1;
    this.#names = names.slice(0, -1);
    this.#open.length = Math.min(this.#open.length, known + 1);
    for (let depth = this.#open.length - 1; depth < names.length - 1; depth += 1)
      this.#open.push(this.#below(this.#open[depth] ?? [], names[depth] ?? ""));
    const characters = charactersOf(names.at(-1) ?? "");
    return (this.#open.at(-1) ?? []).some((at) => {
      const component = this.#components[at];
      return component?.last === true && this.#fits(component, characters);
    });
  }

  #below(open: readonly number[], name: string): number[] {
    if (open.length === 0) return [];
    const characters = charactersOf(name);
    const next: number[] = [];
    for (const at of open) {
      const component = this.#components[at];
      if (component === undefined || !this.#fits(component, characters)) continue;
      if (component.deep) addTo(next, at);
      else if (!component.last) addTo(next, at + 1);
    }
    return this.#closed(next);
  }

  /** `**` also stands for no directory at all; what follows it is never another one. */
  #closed(open: readonly number[]): number[] {
    const found: number[] = [];
    for (const at of open) {
      addTo(found, at);
      const component = this.#components[at];
      if (component?.deep === true && !component.last) addTo(found, at + 1);
    }
    return found;
  }

  #fits(component: Component, name: readonly number[]): boolean {
    this.#steps += 1;
    if (this.#steps > stepsAtMost)
      throw new TooLarge("the pattern looks at too many paths; begin it with a directory further down");
    if (name[0] === dot && !component.fitsHidden) return false;
    return component.deep || this.#fitsName(component.tokens, name);
  }

  /** Only the last star is ever gone back to: what stands before it has found its first place, which is as good as any. */
  #fitsName(tokens: readonly Token[], name: readonly number[]): boolean {
    let inTokens = 0;
    let inName = 0;
    let retry: { token: number; name: number } | undefined;
    while (inTokens < tokens.length || inName < name.length) {
      this.#steps += 1;
      const token = tokens[inTokens];
      if (token?.type === "star") {
        inTokens += 1;
        retry = { token: inTokens, name: inName };
        // A star at the end takes whatever is left.
        if (inTokens === tokens.length) return true;
        continue;
      }
      const character = name[inName];
      if (token !== undefined && character !== undefined && this.#fitsOne(token, character)) {
        inTokens += 1;
        inName += 1;
        continue;
      }
      if (retry === undefined || retry.name >= name.length) return false;
      retry.name += 1;
      inTokens = retry.token;
      inName = retry.name;
    }
    return true;
  }

  #fitsOne(token: Token, character: number): boolean {
    switch (token.type) {
      case "any":
        return true;
      case "literal":
        return token.character === character;
      case "class":
        this.#steps += token.ranges.length;
        return token.ranges.some(([low, high]) => low <= character && character <= high) !== token.negated;
      case "star":
        return false;
      default:
        return token satisfies never;
    }
  }
}

/**
 * The paths that match, in their order. Others have their turn while it looks.
 * @param options.atMost it ends behind one more than these.
 * @throws BadRequest for a pattern that is too large; TooLarge when it looks at too much; what `signal` was aborted with.
 */
export async function matchingPaths(
  paths: Iterable<string>,
  text: string,
  options: { signal: AbortSignal; atMost?: number },
): Promise<string[]> {
  const pattern = new PathPattern(text);
  const { atMost = Number.POSITIVE_INFINITY } = options;
  const found: string[] = [];
  let turnAt = stepsAlone;
  for (const path of paths) {
    if (pattern.matches(path)) found.push(path);
    if (found.length > atMost) break;
    if (pattern.steps < turnAt) continue;
    turnAt = pattern.steps + stepsAlone;
    await new Promise((resolve) => setImmediate(resolve));
    options.signal.throwIfAborted();
  }
  return found;
}

const dot = 0x2e;

/** To numbers that come in order, each once. */
function addTo(numbers: number[], next: number): void {
  if (numbers.at(-1) !== next) numbers.push(next);
}

function charactersOf(text: string): number[] {
  return Array.from(text, (character) => character.codePointAt(0) ?? 0);
}

function tokensOf(text: string): Token[] {
  const characters = Array.from(text);
  const tokens: Token[] = [];
  // When one bracket has no end, none after it has: they must not each search the rest of the pattern.
  let hasEnd = true;
  for (let at = 0; at < characters.length; at += 1) {
    const character = characters[at] ?? "";
    if (character === "*") {
      if (tokens.at(-1)?.type !== "star") tokens.push({ type: "star" });
      continue;
    }
    if (character === "?") {
      tokens.push({ type: "any" });
      continue;
    }
    const found: ReturnType<typeof classAt> =
      character === "[" && hasEnd ? classAt(characters, at) : undefined;
    if (character === "[") hasEnd = found !== undefined;
    if (found !== undefined) {
      tokens.push(found.token);
      at = found.end;
      continue;
    }
    const isEscape = character === "\\" && at + 1 < characters.length;
    if (isEscape) at += 1;
    tokens.push({ type: "literal", character: (characters[at] ?? "").codePointAt(0) ?? 0 });
  }
  return tokens;
}

/** @returns undefined without an end: then the bracket stands for itself. */
function classAt(characters: readonly string[], open: number): { token: Token; end: number } | undefined {
  const code = (at: number) => characters[at]?.codePointAt(0) ?? 0;
  let at = open + 1;
  const negated = characters[at] === "!" || characters[at] === "^";
  if (negated) at += 1;
  const first = at;
  const ranges: [number, number][] = [];
  while (at < characters.length) {
    if (characters[at] === "]" && at > first) return { token: { type: "class", negated, ranges }, end: at };
    if (characters[at] === "\\" && at + 1 < characters.length) at += 1;
    const low = code(at);
    at += 1;
    let high = low;
    if (characters[at] === "-" && at + 1 < characters.length && characters[at + 1] !== "]") {
      high = code(at + 1);
      at += 2;
    }
    ranges.push([low, high]);
  }
  return undefined;
}

/** What a pattern is made of: a brace or a comma, or what is between them, escapes included. */
const pieces = /[{},]|(?:\\.?|[^{},\\])+/gs;

/**
 * Expands `{a,b}`, nested ones too, in one pass: it costs what comes of it, and no more than may. A brace without its partner or
 * without a comma stands for itself.
 */
function alternatives(pattern: string): readonly string[] {
  /** Of the pattern and of each brace that is open: what its parts, between its commas, expand to. */
  const levels: (readonly string[])[][] = [[[""]]];
  const append = (expanded: readonly string[]) => {
    const parts = levels.at(-1) ?? [];
    parts.push(joined(parts.pop() ?? [""], expanded));
  };
  for (const [piece] of pattern.matchAll(pieces)) {
    const isOpen = levels.length > 1;
    if (piece === "{") levels.push([[""]]);
    else if (piece === "," && isOpen) levels.at(-1)?.push([""]);
    else if (piece === "}" && isOpen) {
      const parts = levels.pop() ?? [];
      append(parts.length > 1 ? parts.flat() : joined(["{"], joined(parts[0] ?? [], ["}"])));
    } else append([piece]);
  }
  while (levels.length > 1) {
    const parts = levels.pop() ?? [];
    append(parts.reduce((before, part) => joined(joined(before, [","]), part)).map((text) => `{${text}`));
  }
  return levels[0]?.[0] ?? [];
}

/** @throws BadRequest when there are more of them, or longer ones, than may be: whatever they are part of has no fewer. */
function joined(begun: readonly string[], ends: readonly string[]): readonly string[] {
  if (begun.length * ends.length > alternativesAtMost)
    throw new BadRequest(`the pattern has more than ${alternativesAtMost} alternatives`);
  const isFirst = begun.length === 1 && begun[0] === "";
  const all = isFirst ? ends : begun.flatMap((start) => ends.map((end) => start + end));
  if (all.reduce((length, text) => length + text.length, 0) > expandedAtMost)
    throw new BadRequest(`the alternatives of the pattern are longer than ${expandedAtMost} characters`);
  return all;
}
