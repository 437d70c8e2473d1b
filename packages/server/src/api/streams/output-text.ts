import { formatDuration, type LimitName, type OutputEncoding } from "@alcove/wire";
import { endedBecause } from "../../core/exec/ended-because.ts";
import type { FollowedEvent } from "../../core/exec/lasting-view.ts";
import type { ExecExit } from "../../ports/sandbox-operations.ts";

/** A piece of a command's output as it goes out, or its end. */
export type OutputText = OutputPiece | { stream: "exit"; exit: ExecExit; lostBytes?: number };

export interface OutputPiece {
  stream: "stdout" | "stderr";
  data: string;
  /** Of the first byte; with the bytes of valid text, or of base64, it tells where to go on. */
  offset: number;
  /** Where to go on, of text that has not as many bytes as were written. */
  nextOffset?: number;
  encoding?: "base64";
  /** Said by the service, not by the command. */
  notice?: true;
  /** Missing between the piece before, or where the reading was to begin, and this one. */
  lostBytes?: number;
}

/**
 * Turns the bytes of both streams into what goes out. As text, a UTF-8 sequence that ends in the next piece waits for
 * it and invalid bytes become U+FFFD; as base64, every piece goes out as it came. A command ended at its deadline says so on
 * its stderr before its exit. docs/api/exec.md.
 */
export class OutputDecoder {
  readonly #base64: boolean;
  readonly #begun = { stdout: none, stderr: none };
  #nextOffset = 0;
  /** Missing, and not told yet. */
  #lostBytes = 0;

  constructor(encoding: OutputEncoding = "utf8") {
    this.#base64 = encoding === "base64";
  }

  /** @returns the pieces an event gives; none while a sequence is incomplete. */
  decode(event: FollowedEvent): OutputText[] {
    if (event.type === "exit") return this.#end(event.exit, event.lostBytes ?? 0);
    const { stream, offset, data } = event;
    if (this.#base64) {
      this.#nextOffset = offset + data.length;
      this.#lostBytes += event.lostBytes ?? 0;
      if (data.length === 0) return [];
      return [{ stream, data: data.toString("base64"), offset, encoding: "base64", ...this.#lost() }];
    }
    const before = offset === this.#nextOffset ? [] : this.#flush();
    this.#nextOffset = offset + data.length;
    this.#lostBytes += event.lostBytes ?? 0;
    const begun = this.#begun[stream];
    const bytes = begun.length === 0 ? data : Buffer.concat([begun, data]);
    const waits = incompleteTail(bytes);
    const text = bytes.toString("utf8", 0, bytes.length - waits);
    this.#begun[stream] = waits === 0 ? none : Buffer.from(bytes.subarray(bytes.length - waits));
    if (text === "") return before;
    const next = nextOffset(text, { offset: offset - begun.length, bytes: bytes.length - waits });
    return [...before, { stream, data: text, offset: offset - begun.length, ...next, ...this.#lost() }];
  }

  /** What is incomplete stays so: at the end, and where a reader that skips missed bytes. */
  #flush(): OutputText[] {
    const pieces: OutputText[] = [];
    for (const stream of ["stdout", "stderr"] as const) {
      const begun = this.#begun[stream];
      this.#begun[stream] = none;
      if (begun.length === 0) continue;
      const offset = this.#nextOffset - begun.length;
      const data = begun.toString("utf8");
      const next = nextOffset(data, { offset, bytes: begun.length });
      pieces.push({ stream, data, offset, ...next, ...this.#lost() });
    }
    return pieces;
  }

  /** What the next piece tells to be missing before it. */
  #lost(): { lostBytes?: number } {
    const lostBytes = this.#lostBytes;
    this.#lostBytes = 0;
    return lostBytes === 0 ? {} : { lostBytes };
  }

  #end(exit: ExecExit, lostBytes: number): OutputText[] {
    const pieces = this.#flush();
    this.#lostBytes += lostBytes;
    const offset = this.#nextOffset;
    const said = noticeOf(exit);
    if (said !== undefined) {
      const text = `${said}\n`;
      const data = this.#base64 ? Buffer.from(text).toString("base64") : text;
      pieces.push({
        stream: "stderr",
        data,
        offset,
        ...(this.#base64 ? { encoding: "base64" } : {}),
        notice: true,
      });
    }
    pieces.push({ stream: "exit", exit, ...this.#lost() });
    return pieces;
  }
}

/** What the service says of an end that it brought about. */
function noticeOf(exit: ExecExit): string | undefined {
  if (exit.reason === "timeout") return `command timed out after ${formatDuration(exit.durationMs)}`;
  return endedBecause(exit);
}

const none = Buffer.alloc(0);

/** Each U+FFFD has three bytes, whatever it stands for. */
function nextOffset(text: string, written: { offset: number; bytes: number }): { nextOffset?: number } {
  return Buffer.byteLength(text) === written.bytes ? {} : { nextOffset: written.offset + written.bytes };
}

/** How many bytes at the end begin a UTF-8 sequence that goes on. */
function incompleteTail(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const length =
      byte >= 0xf0 && byte <= 0xf4
        ? 4
        : byte >= 0xe0 && byte < 0xf0
          ? 3
          : byte >= 0xc2 && byte < 0xe0
            ? 2
            : 1;
    return length > back ? back : 0;
  }
  return 0;
}

/** How a piece tells where to go on where its data does not. */
export function nextField({ nextOffset }: { nextOffset?: number }): { next_offset?: number } {
  return nextOffset === undefined ? {} : { next_offset: nextOffset };
}

/** How a piece or an exit tells what is missing before it. */
export function lostField({ lostBytes }: { lostBytes?: number }): { lost_bytes?: number } {
  return lostBytes === undefined ? {} : { lost_bytes: lostBytes };
}

/** The additive fields every form of an exit carries on the wire. docs/api/exec.md. */
export function exitFields(exit: ExecExit): {
  exit_code: number;
  reason: ExecExit["reason"];
  signal?: string;
  duration: string;
  limit?: LimitName;
  usage?: { cpu_ms: number; max_memory_bytes: number; wall_ms: number };
  oom_kills?: number;
  error?: string;
} {
  const { signal, limit, usage, oomKills } = exit;
  const error = endedBecause(exit);
  return {
    exit_code: exit.exitCode,
    reason: exit.reason,
    ...(signal === undefined ? {} : { signal }),
    duration: formatDuration(exit.durationMs),
    ...(limit === undefined ? {} : { limit }),
    ...(usage === undefined
      ? {}
      : {
          usage: {
            cpu_ms: usage.cpuMs,
            max_memory_bytes: usage.maxMemoryBytes,
            wall_ms: Math.round(exit.durationMs),
          },
        }),
    ...(oomKills === undefined ? {} : { oom_kills: oomKills }),
    ...(error === undefined ? {} : { error }),
  };
}
