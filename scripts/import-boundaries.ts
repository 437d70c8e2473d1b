import { glob, readFile } from "node:fs/promises";
import path from "node:path";

/** Areas of the code, most specific folder first, and the areas each may import from. docs/architecture.md. */
const areas: readonly { name: string; folder: string; may: readonly string[] }[] = [
  { name: "wire", folder: "packages/wire/src", may: [] },
  { name: "sdk", folder: "packages/sdk/src", may: ["wire"] },
  { name: "cli", folder: "packages/cli/src", may: ["sdk", "wire", "server"] },
  { name: "config", folder: "packages/server/src/config", may: ["wire"] },
  { name: "core", folder: "packages/server/src/core", may: ["wire", "ports", "platform", "config"] },
  { name: "ports", folder: "packages/server/src/ports", may: ["wire"] },
  { name: "agent-client", folder: "packages/server/src/providers/agent", may: ["wire", "ports", "platform"] },
  {
    name: "runtime-records",
    folder: "packages/server/src/providers/runtime-records",
    may: ["wire", "ports", "platform"],
  },
  {
    name: "exec-journal",
    folder: "packages/server/src/providers/exec-journal",
    may: ["wire", "ports", "platform"],
  },
  {
    name: "path-pattern",
    folder: "packages/server/src/providers/path-pattern",
    may: ["wire", "ports", "platform"],
  },
  { name: "guards", folder: "packages/server/src/providers/guards", may: ["ports", "platform"] },
  { name: "ext4", folder: "packages/server/src/providers/ext4", may: ["ports", "platform"] },
  { name: "prepared", folder: "packages/server/src/providers/prepared", may: ["ports", "platform"] },
  { name: "host-root", folder: "packages/server/src/providers/host-root", may: [] },
  { name: "launcher", folder: "packages/server/src/providers/launcher", may: ["wire", "ports", "platform"] },
  {
    name: "providers",
    folder: "packages/server/src/providers",
    may: [
      "wire",
      "ports",
      "platform",
      "config",
      "agent-client",
      "exec-journal",
      "path-pattern",
      "ext4",
      "guards",
      "host-root",
      "launcher",
      "prepared",
      "runtime-records",
      "pulls",
    ],
  },
  {
    name: "images",
    folder: "packages/server/src/images",
    may: ["wire", "ports", "platform", "config", "pulls"],
  },
  { name: "pulls", folder: "packages/server/src/pulls", may: ["ports", "platform"] },
  { name: "stores", folder: "packages/server/src/stores", may: ["wire", "ports", "platform"] },
  { name: "api", folder: "packages/server/src/api", may: ["wire", "ports", "platform", "config", "core"] },
  { name: "telemetry", folder: "packages/server/src/telemetry", may: ["ports", "platform", "config"] },
  { name: "platform", folder: "packages/server/src/platform", may: ["ports"] },
];

const importPattern = /(?:^|\n)\s*(?:import|export)\s[^;]*?from\s+"([^"]+)"|import\("([^"]+)"\)/g;

function areaOf(file: string): { name: string; folder: string; may: readonly string[] } | undefined {
  return areas.find((area) => file.startsWith(`${area.folder}/`));
}

/** Two providers never import each other; what they share is in areas of its own. */
function providerOf(file: string): string | undefined {
  return /^packages\/server\/src\/providers\/([^/]+)\//.exec(file)?.[1];
}

/** @returns one line for each import that crosses a boundary it must not cross; tests are free. */
export async function forbiddenImports(root: string): Promise<string[]> {
  const findings: string[] = [];
  for await (const found of glob("packages/*/src/**/*.ts", { cwd: root })) {
    const file = found.split(path.sep).join("/");
    const from = areaOf(file);
    if (from === undefined || file.endsWith(".test.ts") || /\/(contract|testing)\//.test(file)) continue;
    const text = await readFile(path.join(root, file), "utf8");
    for (const match of text.matchAll(importPattern)) {
      const specifier = match[1] ?? match[2] ?? "";
      const target = resolve(file, specifier);
      if (target === undefined) continue;
      const allowed = target.area === from.name || from.may.includes(target.area);
      const otherProvider =
        from.name === "providers" &&
        target.area === "providers" &&
        providerOf(file) !== providerOf(target.file);
      if (!allowed || otherProvider)
        findings.push(`${file} imports ${specifier}: ${from.name} must not import ${target.area}`);
    }
  }
  return findings;
}

function resolve(file: string, specifier: string): { area: string; file: string } | undefined {
  const own = /^@alcove\/(wire|sdk|cli|server)/.exec(specifier);
  if (own?.[1] !== undefined) return { area: own[1], file: specifier };
  if (!specifier.startsWith(".")) return undefined;
  const target = path.posix.normalize(path.posix.join(path.posix.dirname(file), specifier));
  const area = areaOf(target);
  return area === undefined ? { area: "root", file: target } : { area: area.name, file: target };
}
