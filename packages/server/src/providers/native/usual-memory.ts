import { readFile, rename, writeFile } from "node:fs/promises";
import { bootId } from "../../platform/process-identity.ts";

/** The least that the machine used for nobody, MB, since it was started: a restart of the service does not forget it. */
export interface UsualMemory {
  /** @returns undefined when no process of the service has written it down since the machine was started. */
  read(): Promise<number | undefined>;
  write(mb: number): Promise<void>;
}

export function usualMemoryIn(file: string): UsualMemory {
  return {
    read: async () => {
      const text = await readFile(file, "utf8").catch(() => "");
      const [boot, mb] = text.trim().split(" ");
      return boot === (await bootId()) && /^\d+$/.test(mb ?? "") ? Number(mb) : undefined;
    },
    write: async (mb) => {
      await writeFile(`${file}.new`, `${await bootId()} ${Math.round(mb)}\n`, { mode: 0o600 });
      await rename(`${file}.new`, file);
    },
  };
}
