/** Recognises `~.` at the start of a line, the keys that leave a terminal session that no longer answers. */
export class LeaveKeys {
  #state: "line_start" | "tilde" | "other" = "line_start";

  /** @returns what to send on, and whether the user wants to leave. `~~` sends one tilde. */
  feed(input: Uint8Array): { data: Uint8Array; leave: boolean } {
    const out: number[] = [];
    for (const byte of input) {
      if (this.#state === "tilde") {
        if (byte === dot) return { data: Uint8Array.from(out), leave: true };
        if (byte !== tilde) out.push(tilde);
        this.#state = "other";
      } else if (this.#state === "line_start" && byte === tilde) {
        this.#state = "tilde";
        continue;
      }
      out.push(byte);
      this.#state = byte === carriageReturn || byte === lineFeed ? "line_start" : "other";
    }
    return { data: Uint8Array.from(out), leave: false };
  }
}

const tilde = 0x7e;
const dot = 0x2e;
const carriageReturn = 0x0d;
const lineFeed = 0x0a;
