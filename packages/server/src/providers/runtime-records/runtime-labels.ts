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
} as const;

const runtimeIds = /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$/;
const sandboxIds = /^sb-[a-z0-9]{1,32}$/;

const Note = Type.Object({ image: Type.String(), createdAt: Type.String(), sandbox: WrittenNote });

export interface Labels {
  runtimeId: RuntimeId;
  sandboxId: SandboxId | undefined;
  note: SandboxNote | undefined;
}

/** The environment stays out of it: it may hold secrets, and such a service shows labels to whoever may list. */
export function labelsOf(spec: RuntimeSpec, installation: string): Record<string, string> {
  const note: Static<typeof Note> = {
    image: spec.image,
    createdAt: new Date().toISOString(),
    sandbox: { ...noteOf(spec), env: {} },
  };
  return {
    [keys.installation]: installation,
    [keys.runtime]: spec.runtimeId,
    [keys.sandbox]: spec.sandboxId,
    [keys.note]: JSON.stringify(note),
  };
}

export const ofInstallation = (installation: string): Record<string, string> => ({
  [keys.installation]: installation,
});

export const ofRuntime = (installation: string, runtimeId: RuntimeId): Record<string, string> => ({
  [keys.installation]: installation,
  [keys.runtime]: runtimeId,
});

/**
 * Whoever keeps them may have changed them: what no request could have asked for is not believed.
 * @returns undefined for what is not of this installation: the filter of the list is not relied on.
 */
export function readLabels(
  metadata: Readonly<Record<string, string>>,
  installation: string,
): Labels | undefined {
  const runtimeId = metadata[keys.runtime];
  if (metadata[keys.installation] !== installation || runtimeId === undefined || !runtimeIds.test(runtimeId))
    return undefined;
  const sandboxId = metadata[keys.sandbox];
  if (sandboxId === undefined || !sandboxIds.test(sandboxId))
    return { runtimeId: runtimeId as RuntimeId, sandboxId: undefined, note: undefined };
  return {
    runtimeId: runtimeId as RuntimeId,
    sandboxId: sandboxId as SandboxId,
    note: readNote(metadata[keys.note]),
  };
}

/** What cannot be read tells nothing. */
function readNote(text: string | undefined): SandboxNote | undefined {
  if (text === undefined) return undefined;
  try {
    const note: unknown = JSON.parse(text);
    return Value.Check(Note, note) && asRequested(note) ? fromNote(note).note : undefined;
  } catch {
    return undefined;
  }
}
