import { randomBytes } from "node:crypto";
import { open, readFile, rename } from "node:fs/promises";

const secretBytes = 32;

/**
 * A secret of this installation alone, made when it is first asked for; nobody but the service's user reads its file.
 * Whole or not at all: a crash while it is made leaves no half of one. Removing the file and restarting makes another.
 * @throws Error naming the file when what it holds is no such secret.
 */
export async function openSecretFile(path: string): Promise<Buffer> {
  const known = await readSecret(path);
  if (known !== undefined) return known;
  const secret = randomBytes(secretBytes);
  const half = `${path}.new`;
  await using file = await open(half, "w", 0o600);
  // It may have been left by a crash, with whatever mode.
  await file.chmod(0o600);
  await file.writeFile(`${secret.toString("base64url")}\n`);
  await file.sync();
  await rename(half, path);
  return secret;
}

async function readSecret(path: string): Promise<Buffer | undefined> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
  const secret = Buffer.from(text.trim(), "base64url");
  if (secret.length !== secretBytes)
    throw new Error(`${path} does not hold ${secretBytes} bytes of secret: remove it, and another is made`);
  return secret;
}
