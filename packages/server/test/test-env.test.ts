import { readFile } from "node:fs/promises";
import { expect, it } from "vitest";

const read = (file: string) => readFile(new URL(file, import.meta.url), "utf8");

it("the script that prepares a machine installs every package that tests ask for", async () => {
  const [requirements, script] = [
    await read("support/requirements.ts"),
    await read("../../../scripts/test-env.sh"),
  ];
  const asked = [...requirements.matchAll(/program\("[^"]+", "([^"]+)"\)|program\(name, "([^"]+)"\)/g)].map(
    ([, named, listed]) => named ?? listed,
  );
  expect(asked).toEqual(expect.arrayContaining(["docker.io", "podman", "rootlesskit", "skopeo"]));
  const lists = [...script.matchAll(/(?:wanted|optional)="([^"]*)"/g)].map(([, list]) => list).join(" ");
  expect(lists.split(/\s+/)).toEqual(expect.arrayContaining(asked));
});
