import { BadRequest, NotFound } from "../../ports/index.ts";

const longestReference = 300;
const wellFormed = /^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$/;

/**
 * The engine's name of a requested image: spelled as Docker lists it, without `docker.io/library/` and with a tag, and
 * aliases applied, which are looked up by either spelling and then by `*`.
 * @throws BadRequest for a name no image can have; NotFound for `host`, which is no image of an engine.
 */
export function resolveImageName(requested: string, aliases: Readonly<Record<string, string>>): string {
  const known = [requested, spelled(requested), "*"].find((one) => Object.hasOwn(aliases, one));
  const alias = known === undefined ? undefined : aliases[known];
  // `"*": host` and `name: host` speak to the providers that can run on the machine's own root.
  const name = alias === undefined || alias === "host" ? requested : alias;
  if (name === "host") {
    throw new NotFound(
      'image "host" is the machine\'s own root; provider docker needs an image of its engine',
      { what: "image" },
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
  return spelled(name);
}

function spelled(name: string): string {
  const short = name.replace(/^(?:index\.)?docker\.io\//, "").replace(/^library\/(?=[^/]+$)/, "");
  const last = short.slice(short.lastIndexOf("/") + 1);
  return last.includes(":") || short.includes("@") ? short : `${short}:latest`;
}
