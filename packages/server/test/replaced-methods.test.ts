import { existsSync, readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";

const source = new URL("../src/", import.meta.url);
/** Of streams, sockets and WebSockets. */
const methods = "push|_?read|_?write|_?destroy|_?final|end|close|pause|resume|emit|on|send|terminate";

test("docs/decisions/http-interface.md lists where methods of foreign objects are replaced", () => {
  const page = readFileSync(new URL("../../../docs/decisions/http-interface.md", import.meta.url), "utf8");
  const listed = [...page.matchAll(/^\| `([\w/-]+\.ts)` \| ([^|]*) of [^|]*\|[^|]*\| ([^|]*) \|$/gm)].map(
    ([, file = "", names = "", tests = ""]) => ({
      file,
      names: [...names.matchAll(/`(\w+)`/g)].map(([, name]) => name).sort(),
      tests: [...tests.matchAll(/`([^`]+)`/g)].map(([, test = ""]) => test),
    }),
  );
  const found = readdirSync(source, { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".ts") && !/\.test\.ts$|(?:^|\/)testing\//.test(file))
    .flatMap((file) => {
      const text = readFileSync(new URL(file, source), "utf8");
      const names = [...text.matchAll(new RegExp(`^\\s*(?:if .*)?\\b\\w+\\.(${methods}) = `, "gm"))];
      return names.length === 0 ? [] : [{ file, names: [...new Set(names.map(([, name]) => name))].sort() }];
    });
  const sorted = <T extends { file: string }>(entries: T[]) =>
    entries.sort((a, b) => (a.file < b.file ? -1 : 1));
  expect(sorted(listed.map(({ file, names }) => ({ file, names })))).toEqual(sorted(found));
  for (const { tests } of listed) {
    expect(tests).not.toEqual([]);
    const places = [source, new URL("../", import.meta.url)];
    for (const each of tests)
      expect([each, places.some((place) => existsSync(new URL(each, place)))]).toEqual([each, true]);
  }
});
