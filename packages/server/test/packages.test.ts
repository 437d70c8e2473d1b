import { readFileSync } from "node:fs";
import { expect, test } from "vitest";

interface LockedPackage {
  readonly dev?: boolean;
  readonly link?: boolean;
  readonly license?: string;
  readonly hasInstallScript?: boolean;
}

const lock = JSON.parse(readFileSync(new URL("../../../package-lock.json", import.meta.url), "utf8"));
const used = Object.entries<LockedPackage>(lock.packages).filter(
  ([name, { dev, link }]) => name.startsWith("node_modules/") && dev !== true && link !== true,
);

test("what the service runs on needs no compiler and no install script", () => {
  expect(used.length).toBeGreaterThan(50);
  expect(used.filter(([, { hasInstallScript }]) => hasInstallScript === true)).toEqual([]);
});

test("every package the service runs on has a permissive licence", () => {
  const permissive = new Set([
    "(Apache-2.0 AND BSD-3-Clause)",
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BlueOak-1.0.0",
    "ISC",
    "MIT",
  ]);
  expect(used.filter(([, { license }]) => !permissive.has(license ?? "")).map(([name]) => name)).toEqual([]);
});
