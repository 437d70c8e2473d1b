import { readFile } from "node:fs/promises";
import path from "node:path";
import { expect, test } from "vitest";
import { currentDocument } from "./support/openapi-document.ts";

test("openapi.json is what the routes give; scripts/openapi.ts writes it anew", async () => {
  const file = path.join(import.meta.dirname, "../../../openapi.json");
  expect(await readFile(file, "utf8")).toBe(await currentDocument());
});

test("openapi.json refers to nothing that it does not hold", async () => {
  const text = await currentDocument();
  const document = JSON.parse(text);
  const names = new Set(Object.keys(document.components.schemas));
  const missing = [...text.matchAll(/"#\/components\/schemas\/([^"]+)"/g)]
    .map((match) => match[1] ?? "")
    .filter((name) => !names.has(name));
  expect(missing).toEqual([]);
  expect(document.openapi).toBe("3.1.0");
});
