import { BadRequest, NotFound } from "../../ports/index.ts";

const longestReference = 300;
const wellFormed = /^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$/;

/**
 * The engine's name of a requested image: aliases applied, `:latest` added where neither tag nor digest is given.
 * @throws BadRequest for a name no image can have; NotFound for `host`, which is no image of an engine.
 */
export function resolveImageName(requested: string, aliases: Readonly<Record<string, string>>): string {
  const alias = Object.hasOwn(aliases, requested) ? aliases[requested] : undefined;
  // `"*": host` and `name: host` speak to the providers that can run on the machine's own root.
  const name = alias === undefined || alias === "host" ? requested : alias;
  if (name === "host") {
    throw new NotFound(
      'image "host" is the machine\'s own root; provider docker needs an image of its engine',
    );
  }
  const folders = name.split("/");
  if (
    name.length > longestReference ||
    !wellFormed.test(name) ||
    folders.some((part) => /^\.*$/.test(part))
  ) {
    throw new BadRequest(
      `image ${JSON.stringify(name.slice(0, longestReference))} is not a name of an image`,
    );
  }
  const last = folders.at(-1) ?? "";
  return last.includes(":") || name.includes("@") ? name : `${name}:latest`;
}
