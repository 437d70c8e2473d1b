import { networkModes } from "@alcove/wire";
import { type Static, Type } from "typebox";
import type { RuntimeSpec, SandboxNote } from "../../ports/index.ts";

const texts = Type.Record(Type.String(), Type.String());

/** More than any run makes, and far from where adding one is no longer exact. */
const mostBirths = 2 ** 40;

/**
 * What the record of a runtime says of its sandbox, so that it can be known again when the database was lost. Records
 * of earlier releases have none. An extended expiry is not written down: the agent keeps it.
 */
export const WrittenNote = Type.Object({
  image: Type.String(),
  memoryMb: Type.Integer(),
  vcpus: Type.Number(),
  ownerId: Type.String(),
  name: Type.Optional(Type.String()),
  birth: Type.Optional(
    Type.Object({
      run: Type.String(),
      number: Type.Integer({ minimum: 1, maximum: mostBirths }),
    }),
  ),
  metadata: texts,
  env: texts,
  user: Type.Optional(Type.String()),
  workdir: Type.Optional(Type.String()),
  network: Type.Optional(Type.Enum([...networkModes])),
  expiresAt: Type.Optional(Type.String()),
  slot: Type.Optional(Type.Object({ vmId: Type.String(), uid: Type.Integer() })),
});
export type WrittenNote = Static<typeof WrittenNote>;

export function noteOf(spec: RuntimeSpec): WrittenNote {
  const {
    image,
    memoryMb,
    vcpus,
    ownerId,
    name,
    birth,
    metadata,
    env,
    user,
    workdir,
    network,
    expiresInMs,
    slot,
    // What the record and its folder are called by.
    runtimeId: _runtime,
    sandboxId: _sandbox,
    ...rest
  } = spec;
  // A field that a spawn gains is not forgotten here: a sandbox would be another one once its database was lost.
  rest satisfies Record<string, never>;
  return {
    image,
    memoryMb,
    vcpus,
    ownerId: ownerId ?? "",
    ...(name === undefined ? {} : { name }),
    ...(birth === undefined ? {} : { birth: { run: birth.run, number: birth.number } }),
    metadata: { ...metadata },
    env: { ...env },
    ...(user === undefined ? {} : { user }),
    ...(workdir === undefined ? {} : { workdir }),
    ...(network === undefined ? {} : { network }),
    ...(slot === undefined ? {} : { slot: { vmId: slot.vmId, uid: slot.uid } }),
    ...(expiresInMs === null ? {} : { expiresAt: new Date(Date.now() + expiresInMs).toISOString() }),
  };
}

/** @param record one of a runtime that runs: it names its image as resolved. */
export function fromNote(record: { image: string; createdAt: string; sandbox?: WrittenNote }): {
  note?: SandboxNote;
} {
  const { sandbox } = record;
  if (sandbox === undefined) return {};
  const { expiresAt, ...rest } = sandbox;
  return {
    note: {
      ...rest,
      imageResolved: record.image,
      createdAt: new Date(record.createdAt),
      ...(expiresAt === undefined ? {} : { expiresAt: new Date(expiresAt) }),
    },
  };
}
