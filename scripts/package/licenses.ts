import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import path from "node:path";
import type { Entry } from "./archive.ts";
import { productionPackages } from "./contents.ts";

interface Crate {
  name: string;
  version: string;
  license: string;
  folder: string;
}

/** `LICENSES.md`, which names what the package holds and under which licence, and the texts that lie nowhere else in it. */
export function licenseEntries(root: string, options: { cargo: string; nodeVersion: string }): Entry[] {
  const crates = cratesOfAgent(root, options.cargo);
  const texts = crates.flatMap((crate) =>
    readdirSync(crate.folder)
      .filter((name) => /^(licen[sc]e|copying|notice|copyright)/i.test(name))
      .map(
        (name): Entry => ({
          path: `licenses/rust/${crate.name}-${crate.version}/${name}`,
          type: "file",
          mode: 0o644,
          source: path.join(crate.folder, name),
        }),
      ),
  );
  const rows = (list: readonly { name: string; version: string; license: string }[]) =>
    list.map(({ name, version, license }) => `| ${name} | ${version} | ${license} |`);
  const text = [
    "# What this package holds, and under which licences",
    "",
    "Alcove itself: Apache-2.0, `LICENSE`. Node " +
      options.nodeVersion +
      " and what it contains: `node/LICENSE`.",
    "",
    "The agent and the launcher are static programs: beside the crates below, whose texts are in `licenses/rust`, they",
    "contain the standard library of Rust (MIT or Apache-2.0) and the GNU C library (LGPL-2.1-or-later); their sources, and",
    "the script that links them, are those of Alcove at the commit that `release.json` names.",
    "",
    "| Crate | Version | Licence |",
    "|---|---|---|",
    ...rows(crates),
    "",
    "Packages of npm, each with its text in its folder under `node_modules` where its authors ship one:",
    "",
    "| Package | Version | Licence |",
    "|---|---|---|",
    ...rows(productionPackages(root)),
    "",
  ];
  return [
    { path: "LICENSES.md", type: "file", mode: 0o644, content: Buffer.from(text.join("\n")) },
    ...texts,
  ];
}

/** What is linked into the programs, without what only builds or tests them. */
function cratesOfAgent(root: string, cargo: string): Crate[] {
  const agent = path.join(root, "agent");
  const ask = (args: string[]) => {
    const { status, stdout, stderr } = spawnSync(cargo, args, {
      cwd: agent,
      encoding: "utf8",
      maxBuffer: 2 ** 26,
    });
    if (status !== 0) throw new Error(`${cargo} ${args[0]}: ${stderr}`);
    return stdout;
  };
  const tree = ask(["tree", "--locked", "--offline", "--edges", "normal,no-proc-macro", "--prefix", "none"]);
  const linked = new Set(
    [...tree.matchAll(/^(\S+) v(\S+)/gm)].map(([, name, version]) => `${name} ${version}`),
  );
  const { packages } = JSON.parse(ask(["metadata", "--locked", "--offline", "--format-version", "1"])) as {
    packages: { name: string; version: string; license: string | null; manifest_path: string }[];
  };
  return packages
    .filter(({ name, version }) => linked.has(`${name} ${version}`))
    .map(({ name, version, license, manifest_path: manifest }) => ({
      name,
      version,
      license: license ?? "not stated",
      folder: path.dirname(manifest),
    }))
    .filter(({ folder }) => !folder.startsWith(agent) && existsSync(folder))
    .sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.version < b.version ? -1 : 1));
}
