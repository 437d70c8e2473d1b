import { Forbidden } from "../ports/errors.ts";
import { registryOf } from "../ports/image-store.ts";
import { isInnerHost } from "./inner-host.ts";

/**
 * For an image that a client names.
 * @throws Forbidden for a registry inside this network, which a client may have nobody here talk to, unless the configuration
 *   names it; `*` names none.
 */
export async function refuseInnerRegistry(name: string, allowed: readonly string[]): Promise<void> {
  const registry = registryOf(name);
  if (allowed.includes(registry) || !(await isInnerHost(registry))) return;
  throw new Forbidden(
    `image "${name}" would come from ${registry}, an address inside this network; images.allowed_registries must name it`,
  );
}
