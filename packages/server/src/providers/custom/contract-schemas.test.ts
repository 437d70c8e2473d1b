import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { backendCapabilities, contractSchemas } from "./contract-schemas.ts";

const page = readFileSync(new URL("../../../../../docs/custom-provider.md", import.meta.url), "utf8");

it("the page of the contract has every schema as the provider uses it, and no other", () => {
  const written = [...page.matchAll(/^### (\w+)\n\n```json\n([\s\S]*?)\n```$/gm)].map(
    ([, title, text = ""]) => ({ title, schema: JSON.parse(text) as unknown }),
  );
  const used = contractSchemas.map((schema) => ({
    title: (schema as { title?: string }).title,
    schema: JSON.parse(JSON.stringify(schema)) as unknown,
  }));
  expect(written).toEqual(used);
});

it("the page of the contract tells what each capability of a backend means", () => {
  expect(backendCapabilities.filter((each) => !page.includes(`| \`${each}\` |`))).toEqual([]);
});

it.each(["backend.mjs", "minimal.mjs"])("the example %s has under 200 lines", (file) => {
  const example = new URL(`../../../../../examples/custom-backend/${file}`, import.meta.url);
  expect(readFileSync(example, "utf8").split("\n").length).toBeLessThan(200);
});
