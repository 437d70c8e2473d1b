import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { BadRequest, TooLarge } from "../../ports/errors.ts";
import { matchingPaths } from "./index.ts";

const options = { signal: new AbortController().signal };
const isMatch = async (pattern: string, path: string) =>
  (await matchingPaths([path], pattern, options)).length === 1;

/** The same by trying everything: for short patterns of letters, `*`, `?` and `**`. */
function byTrying(pattern: readonly string[], names: readonly string[]): boolean {
  const [first, ...rest] = pattern;
  const [name, ...below] = names;
  if (first === undefined) return name === undefined;
  if (first === "**") {
    const visible = name !== undefined && !name.startsWith(".");
    if (rest.length === 0) return visible && (below.length === 0 || byTrying(pattern, below));
    return byTrying(rest, names) || (visible && byTrying(pattern, below));
  }
  return name !== undefined && nameByTrying(first, name, true) && byTrying(rest, below);
}

function nameByTrying(pattern: string, name: string, atStart: boolean): boolean {
  if (atStart && name.startsWith(".") && !pattern.startsWith(".")) return false;
  if (pattern === "") return name === "";
  const rest = pattern.slice(1);
  if (pattern.startsWith("*"))
    return nameByTrying(rest, name, false) || (name !== "" && nameByTrying(pattern, name.slice(1), false));
  if (name === "" || (!pattern.startsWith("?") && pattern[0] !== name[0])) return false;
  return nameByTrying(rest, name.slice(1), false);
}

const words = (letters: string[]) =>
  fc.array(fc.constantFrom(...letters), { minLength: 1, maxLength: 6 }).map((all) => all.join(""));
const isName = (word: string) => word !== "." && word !== "..";
const patternNames = fc.array(
  fc.oneof(
    fc.constant("**"),
    words(["a", "b", ".", "*", "?"]).filter((word) => isName(word)),
  ),
  { minLength: 1, maxLength: 5 },
);
const pathNames = fc.array(words(["a", "b", "."]).filter(isName), { minLength: 1, maxLength: 5 });

/** What this thread has worked since, whoever else the machine works for. */
function processorMs(before: NodeJS.CpuUsage): number {
  const { user, system } = process.threadCpuUsage(before);
  return (user + system) / 1_000;
}

describe("matchingPaths()", () => {
  it("finds what trying everything finds, whatever was looked at before", async () => {
    await fc.assert(
      fc.asyncProperty(patternNames, fc.array(pathNames, { maxLength: 8 }), async (pattern, all) => {
        const expected = all
          .filter((names) => byTrying(pattern, names))
          .map((names) => `/${names.join("/")}`);
        const paths = all.map((names) => `/${names.join("/")}`);
        expect(await matchingPaths(paths, `/${pattern.join("/")}`, options)).toEqual(expected);
      }),
      { numRuns: 3_000 },
    );
  });

  it.each([
    ["/*.txt", "/a.txt", true],
    ["/*.txt", "/a.txt.bak", false],
    ["/?", "/é", true],
    ["/?", "/🦀", true],
    ["/??", "/é", false],
    ["/[a-c]x", "/bx", true],
    ["/[!a-c]x", "/bx", false],
    ["/[^a-c]x", "/dx", true],
    ["/[]]", "/]", true],
    ["/[", "/[", true],
    ["/[\\]]", "/]", true],
    ["/*", "/.hidden", false],
    ["/[.]x", "/.x", false],
    ["/.*", "/.hidden", true],
    ["/\\*", "/*", true],
    ["/\\*", "/x", false],
    ["/a*", "/a", true],
    ["/a{b,c{d,e}}f", "/acef", true],
    ["/a{b,c{d,e}}f", "/acf", false],
    ["/a{b}c{,x}", "/a{b}c", true],
    ["/a{b", "/a{b", true],
    ["/{a/b,c}/d", "/a/b/d", true],
    ["/{1..3}", "/2", false],
    ["//a/./b/", "/a/b", true],
    ["/", "/", true],
    ["/*", "/", false],
    ["/a/**", "/a", false],
    ["/a/**", "/a/b/c", true],
    ["/a/**/c", "/a/c", true],
    ["/**/**/c", "/a/b/c", true],
    ["/**", "/a/.b/c", false],
  ])("%s against %s: %s", async (pattern, path, expected) => {
    expect(await isMatch(pattern, path)).toBe(expected);
  });

  it.each([
    ["many stars in a name", `/tmp/${"*a".repeat(120)}*b`],
    ["many stars in a row", `/tmp/${"*".repeat(4_000)}b`],
    ["many double stars", `/${"**/a/".repeat(100)}b`],
    ["a range that is none", "/tmp/{1..3000000}"],
    ["braces that stay open", `/${"{".repeat(4_000)}`],
    ["brackets that stay open", `/${"[\\]".repeat(1_300)}`],
  ])("takes no time: %s", async (_what, pattern) => {
    const paths = [`/tmp/${"a".repeat(255)}`, `/${"a/".repeat(2_000)}a`];
    await matchingPaths(paths, pattern, options);
    const before = process.threadCpuUsage();
    expect(await matchingPaths(paths, pattern, options)).toEqual([]);
    expect(processorMs(before)).toBeLessThan(100);
  });

  it.each([
    ["too long", `/${"a".repeat(5_000)}`],
    ["too many alternatives", `/${"{a,b}".repeat(10)}`],
    ["alternatives that are too long", `/${"{a,b}".repeat(9)}${"a".repeat(1_000)}`],
    ["too many names", `/${"**/a/".repeat(800)}b`],
    ["alternatives of too many names", `/${"{a,b}".repeat(9)}${"/a".repeat(40)}`],
  ])("refuses at once: %s", async (_what, pattern) => {
    const before = process.threadCpuUsage();
    await expect(matchingPaths([], pattern, options)).rejects.toThrow(BadRequest);
    expect(processorMs(before)).toBeLessThan(100);
  });

  it("refuses too many alternatives without having made some of them, however many ask at once", async () => {
    const pattern = `/${"{a,b}".repeat(800)}`;
    const before = process.threadCpuUsage();
    for (let caller = 0; caller < 64; caller++)
      await expect(matchingPaths([], pattern, options)).rejects.toThrow(BadRequest);
    expect(processorMs(before)).toBeLessThan(300);
  });

  it.each([
    ["/{a,b{c,d}}e", ["/ae", "/bce", "/bde"]],
    ["/{a}{b,c", ["/{a}{b,c"]],
    ["/a},b{c,}", ["/a},bc", "/a},b"]],
    ["/{p{a,b}q}", ["/{paq}", "/{pbq}"]],
    ["/\\{a,b}", ["/{a,b}"]],
  ])("%s stands for %j", async (pattern, paths) => {
    expect(await matchingPaths([...paths, "/a", "/b", "/be"], pattern, options)).toEqual(paths);
  });

  it("gives up what looks at too much, and lets others have their turn until then", async () => {
    const names = Array.from({ length: 5_000 }, (_, index) => `/${"a".repeat(250)}${index}`);
    let turns = 0;
    const timer = setInterval(() => {
      turns += 1;
    }, 1);
    await expect(matchingPaths(names, `/*${"a".repeat(100)}b`, options)).rejects.toThrow(TooLarge);
    clearInterval(timer);
    expect(turns).toBeGreaterThan(10);
  });

  it("ends with its caller", async () => {
    const reason = new Error("gave up");
    const names = Array.from({ length: 50_000 }, (_, index) => `/${index}`);
    await expect(matchingPaths(names, "/*a", { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
  });
});
