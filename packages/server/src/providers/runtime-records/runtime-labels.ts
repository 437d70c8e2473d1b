import { createHmac, timingSafeEqual } from "node:crypto";
import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import type { RuntimeId, RuntimeSpec, SandboxId, SandboxNote } from "../../ports/index.ts";
import { asRequested } from "./as-requested.ts";
import { fromNote, noteOf, WrittenNote } from "./sandbox-note.ts";

/** What a sandbox at another service is marked with. A second installation there never sees the first one's. */
const keys = {
  installation: "alcove.installation",
  runtime: "alcove.runtime",
  sandbox: "alcove.sandbox",
  note: "alcove.note",
  signature: "alcove.signature",
} as const;

const runtimeIds = /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/;
const sandboxIds = /^sb-[a-z0-9]{1,32}$/;

const Note = Type.Object({ image: Type.String(), createdAt: Type.String(), sandbox: WrittenNote });
type Note = Static<typeof Note>;

export interface Labels {
  runtimeId: RuntimeId;
  sandboxId: SandboxId | undefined;
  /** Only what this installation wrote itself. */
  note: SandboxNote | undefined;
  /** How commands start there, as whoever keeps the labels says: what a command runs as there is that one's to decide anyway. */
  start: Pick<RuntimeSpec, "user" | "workdir">;
}

export const ofInstallation = (installation: string): Record<string, string> => ({
  [keys.installation]: installation,
});

export const ofRuntime = (installation: string, runtimeId: RuntimeId): Record<string, string> => ({
  [keys.installation]: installation,
  [keys.runtime]: runtimeId,
});

/**
 * Labels of runtimes that somebody else keeps, who may change them or make them up: which sandbox it is, whose, and when it was
 * made, is believed where this installation has signed it.
 */
export class RuntimeLabels {
  readonly #installation: string;
  readonly #key: Uint8Array;

  constructor(options: { installation: string; key: Uint8Array }) {
    this.#installation = options.installation;
    this.#key = options.key;
  }

  /** The environment stays out of it: it may hold secrets, and such a service shows labels to whoever may list. */
  of(spec: RuntimeSpec): Record<string, string> {
    const written: Note = {
      image: spec.image,
      createdAt: new Date().toISOString(),
      sandbox: { ...noteOf(spec), env: {} },
    };
    const note = JSON.stringify(written);
    return {
      [keys.installation]: this.#installation,
      [keys.runtime]: spec.runtimeId,
      [keys.sandbox]: spec.sandboxId,
      [keys.note]: note,
      [keys.signature]: this.#sign(spec.runtimeId, spec.sandboxId, note).toString("base64url"),
    };
  }

  /**
   * What no request could have asked for is not believed either.
   * @returns undefined for what is not of this installation: the filter of the list is not relied on.
   */
  read(metadata: Readonly<Record<string, string>>): Labels | undefined {
    const runtimeId = metadata[keys.runtime];
    if (metadata[keys.installation] !== this.#installation) return undefined;
    if (runtimeId === undefined || !runtimeIds.test(runtimeId)) return undefined;
    const sandboxId = metadata[keys.sandbox];
    const text = metadata[keys.note];
    const written = text === undefined ? undefined : readNote(text);
    const { user, workdir } = written?.sandbox ?? {};
    const labels: Labels = {
      runtimeId: runtimeId as RuntimeId,
      sandboxId: undefined,
      note: undefined,
      start: { ...(user !== undefined && { user }), ...(workdir !== undefined && { workdir }) },
    };
    if (sandboxId === undefined || !sandboxIds.test(sandboxId)) return labels;
    const signature = Buffer.from(metadata[keys.signature] ?? "", "base64url");
    const right = this.#sign(runtimeId, sandboxId, text ?? "");
    if (signature.length !== right.length || !timingSafeEqual(signature, right))
      return { ...labels, sandboxId: this.#unsignedId(runtimeId) };
    labels.sandboxId = sandboxId as SandboxId;
    if (written !== undefined) labels.note = fromNote(written).note;
    return labels;
  }

  /** An id that a label makes up may be another sandbox's. In its place comes one that nobody else can have given. */
  #unsignedId(runtimeId: string): SandboxId {
    const digest = createHmac("sha256", this.#key).update(JSON.stringify([this.#installation, runtimeId]));
    return `sb-${digest.digest("hex").slice(0, 16)}` as SandboxId;
  }

  #sign(runtimeId: string, sandboxId: string, note: string): Buffer {
    const signed = JSON.stringify([this.#installation, runtimeId, sandboxId, note]);
    return createHmac("sha256", this.#key).update(signed).digest();
  }
}

/** What cannot be read tells nothing. */
function readNote(text: string): Note | undefined {
  try {
    const note: unknown = JSON.parse(text);
    return Value.Check(Note, note) && asRequested(note) ? note : undefined;
  } catch {
    return undefined;
  }
}
