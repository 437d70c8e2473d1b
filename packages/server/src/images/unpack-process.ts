import { DomainError } from "../ports/errors.ts";
import { type UnpackJob, unpack } from "./unpack-layers.ts";

/** What this process tells the one that started it. */
export type UnpackMessage =
  | { kind: "bytes"; bytes: number }
  | { kind: "done"; digest?: string; skipped: number }
  | { kind: "failed"; code: string; message: string };

/** What only the archive can be to blame for; the system's own words would name paths of this machine. */
const unfit: ReadonlyMap<unknown, string> = new Map([
  ["ENAMETOOLONG", "the archive holds a name or a link that is longer than file systems take"],
  ["ERR_OUT_OF_RANGE", "the archive holds an owner or a time beyond what file systems take"],
]);
const tellEveryBytes = 4 * 1_048_576;

// Whoever wanted the image is gone.
process.on("disconnect", () => process.exit(1));
process.once("message", (job: UnpackJob) => {
  void run(job).then((last) => {
    process.send?.(last, () => process.exit(0));
  });
});

async function run(job: UnpackJob): Promise<UnpackMessage> {
  let untold = 0;
  const onBytes = (bytes: number) => {
    untold += bytes;
    if (untold < tellEveryBytes) return;
    process.send?.({ kind: "bytes", bytes: untold } satisfies UnpackMessage);
    untold = 0;
  };
  try {
    const signal = new AbortController().signal;
    return { kind: "done", ...(await unpack(job, process.stdin, { signal, onBytes })) };
  } catch (error) {
    const refused = error instanceof Error && "code" in error ? unfit.get(error.code) : undefined;
    if (refused !== undefined) return { kind: "failed", code: "bad_request", message: refused };
    const code = error instanceof DomainError ? error.code : "";
    const full = error instanceof Error && "code" in error && error.code === "ENOSPC";
    const message = error instanceof Error ? error.message : String(error);
    return { kind: "failed", code: full ? "storage_full" : code, message };
  }
}
