import { constants } from "node:fs";
import { access } from "node:fs/promises";
import { join } from "node:path";

/** @returns the path of an installed program. */
export async function findProgram(name: string): Promise<string | undefined> {
  for (const folder of ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"]) {
    if (await isExecutable(join(folder, name))) return join(folder, name);
  }
  return undefined;
}

async function isExecutable(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK);
    return true;
  } catch (error) {
    if (error instanceof Error && "code" in error) return false;
    throw error;
  }
}
