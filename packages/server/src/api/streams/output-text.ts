import { StringDecoder } from "node:string_decoder";
import { formatDuration } from "@alcove/wire";
import type { ExecEvent, ExecExit } from "../../ports/sandbox-operations.ts";

/** A piece of a command's output as text, or its end. */
export type OutputText =
  | { stream: "stdout" | "stderr"; data: string; offset: number }
  | { stream: "exit"; exit: ExecExit };

/**
 * Turns the bytes of both streams into text. A UTF-8 sequence that ends in the next piece waits for it; invalid bytes
 * become U+FFFD. A command ended at its deadline says so on its stderr before its exit. Spec §4, streaming exec.
 */
export class OutputDecoder {
  readonly #decoders = { stdout: new StringDecoder("utf8"), stderr: new StringDecoder("utf8") };
  #nextOffset = 0;

  /** @returns the pieces an event gives; none while a sequence is incomplete. */
  decode(event: ExecEvent): OutputText[] {
    if (event.type === "exit") return this.#end(event.exit);
    const { stream, offset } = event;
    const before = offset === this.#nextOffset ? [] : this.#flush();
    this.#nextOffset = offset + event.data.length;
    const data = this.#decoders[stream].write(event.data);
    return data === "" ? before : [...before, { stream, data, offset }];
  }

  /** What is incomplete stays so: at the end, and where a reader that skips missed bytes. */
  #flush(): OutputText[] {
    const pieces: OutputText[] = [];
    for (const stream of ["stdout", "stderr"] as const) {
      const data = this.#decoders[stream].end();
      if (data !== "") pieces.push({ stream, data, offset: this.#nextOffset });
    }
    return pieces;
  }

  #end(exit: ExecExit): OutputText[] {
    const pieces = this.#flush();
    const offset = this.#nextOffset;
    if (exit.reason === "timeout") {
      const data = `command timed out after ${formatDuration(exit.durationMs)}\n`;
      pieces.push({ stream: "stderr", data, offset });
    }
    pieces.push({ stream: "exit", exit });
    return pieces;
  }
}

/** The additive fields every form of an exit carries on the wire. DESIGN §4.2. */
export function exitFields(exit: ExecExit): {
  exit_code: number;
  reason: ExecExit["reason"];
  signal?: string;
  duration: string;
} {
  return {
    exit_code: exit.exitCode,
    reason: exit.reason,
    ...(exit.signal === undefined ? {} : { signal: exit.signal }),
    duration: formatDuration(exit.durationMs),
  };
}
