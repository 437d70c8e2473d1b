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

/** C libraries that the programs may be linked with, each with its licence. */
const libraries = {
  gnu: "the GNU C library (LGPL-2.1-or-later)",
  musl: "the C library musl (MIT, `licenses/musl/COPYRIGHT`; its sources name of whom parts of it are) and LLVM's libunwind (Apache-2.0 WITH LLVM-exception)",
};

const muslNotice = `musl as a whole is licensed under the following standard MIT license:

Copyright (c) 2005-2020 Rich Felker, et al.

Permission is hereby granted, free of charge, to any person obtaining
a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to
permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be
included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND,
EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.
IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,
TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`;

/** `LICENSES.md`, which names what the package holds and under which licence, and the texts that lie nowhere else in it. */
export function licenseEntries(
  root: string,
  options: { cargo: string; nodeVersion: string; library: keyof typeof libraries },
): Entry[] {
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
    `contain the standard library of Rust (MIT or Apache-2.0) and ${libraries[options.library]}; their sources, and`,
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
    notice("LICENSES.md", text.join("\n")),
    ...(options.library === "musl" ? [notice("licenses/musl/COPYRIGHT", muslNotice)] : []),
    ...texts,
  ];
}

function notice(path: string, content: string): Entry {
  return { path, type: "file", mode: 0o644, content: Buffer.from(content) };
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
