import { BadRequest } from "../ports/errors.ts";

const namePattern =
  /^(?:(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-f:]+\])(?::\d{1,5})?\/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$/;

/** A name, with `%2F` for each slash, is that of a file in the store, which adds `.json`. */
const longestFileName = 250;

/** The image that is the machine's own root; providers make it, no store holds it. */
export const hostImage = "host";

/**
 * Spells a name the way Docker lists it: without `docker.io/library/`, with a tag (`latest` when none is given).
 * @throws BadRequest for what is no image name.
 */
export function normaliseImageName(name: string): string {
  const spelled = spelledAsListed(name);
  const { length } = encodeURIComponent(spelled);
  if (length > longestFileName)
    throw new BadRequest(
      `the image name ${JSON.stringify(spelled.slice(0, 200))} takes ${length} bytes as the name of a file; ${longestFileName} are allowed`,
    );
  return spelled;
}

function spelledAsListed(name: string): string {
  if (name.length > 512 || !namePattern.test(name))
    throw new BadRequest(
      `${JSON.stringify(name.slice(0, 200))} is not an image name; one looks like debian:12 or registry.example/team/app:1.0`,
    );
  const short = name.replace(/^(?:index\.)?docker\.io\//, "").replace(/^library\/(?=[^/]+$)/, "");
  if (short.includes("@")) return short;
  const lastPart = short.slice(short.lastIndexOf("/") + 1);
  return lastPart.includes(":") ? short : `${short}:latest`;
}

/** Whether the registry in a normalised name is this machine, which may then be spoken to without TLS. */
export function isLoopbackRegistry(name: string): boolean {
  const host = /^(localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?\//.exec(name);
  return host !== null;
}
