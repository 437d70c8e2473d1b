import { nativeHome } from "./native.ts";
import { requirement } from "./requirements.ts";
import type { ProviderFactory } from "./test-server.ts";

/** Servers over `native`, each with a place of its own, removed with the server. */
export const nativeProvider: ProviderFactory = async ({ stack }) => {
  const home = await nativeHome();
  stack.defer(() => home.remove());
  return home.open();
};

/** Why `native` cannot run here; undefined when it can. */
export async function nativeMissing(): Promise<string | undefined> {
  const missing: string[] = [];
  for (const name of ["linux", "root", "agent", "launcher", "native", "busybox"] as const) {
    const found = await requirement(name);
    if (!found.ok) missing.push(found.reason);
  }
  return missing.length === 0 ? undefined : missing.join("; ");
}
