import { createHash, randomUUID } from "node:crypto";
import { chmod, link, mkdir, open, readFile, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { exists } from "../../platform/missing.ts";
import { ProviderError } from "../../ports/errors.ts";

/**
 * Copies the built agent to `<dataDir>/agents/<first 16 digits of its sha256>/alcove-agent` unless it is there. The file
 * appears whole or not at all and is never replaced: running sandboxes use the one they started with. Others than its owner
 * can run it and not read it: of a program that the sandbox cannot read, the kernel never gives files in `/proc` to its root.
 * @throws ProviderError when `binary` was not built.
 */
export async function storeAgent(options: {
  dataDir: string;
  binary: string;
}): Promise<{ path: string; digest: string }> {
  const { contents, digest, path } = await placeOf(options);
  if (await exists(path)) return { path, digest };
  await mkdir(dirname(path), { recursive: true, mode: 0o755 });
  const draft = `${path}.${randomUUID()}`;
  try {
    const file = await open(draft, "wx", 0o711);
    try {
      await file.writeFile(contents);
      await file.sync();
    } finally {
      await file.close();
    }
    await chmod(draft, 0o711);
    await link(draft, path);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
  } finally {
    await rm(draft, { force: true });
  }
  return { path, digest };
}

/** Where `storeAgent` puts it, whether or not it is there. @throws ProviderError when `binary` was not built. */
export async function storedAgentPath(options: { dataDir: string; binary: string }): Promise<string> {
  return (await placeOf(options)).path;
}

async function placeOf(options: {
  dataDir: string;
  binary: string;
}): Promise<{ contents: Buffer; digest: string; path: string }> {
  let contents: Buffer;
  try {
    contents = await readFile(options.binary);
  } catch (error) {
    throw new ProviderError(
      `the agent ${options.binary} cannot be read; "node scripts/build-agent.mjs" builds it`,
      { cause: error },
    );
  }
  const digest = createHash("sha256").update(contents).digest("hex");
  const path = join(options.dataDir, "agents", digest.slice(0, 16), "alcove-agent");
  return { contents, digest, path };
}
