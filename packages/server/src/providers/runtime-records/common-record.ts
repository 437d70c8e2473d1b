import { Type } from "typebox";
import { WrittenNote } from "./sandbox-note.ts";

/** What the record of every provider's runtime says: whose it is, how its agent is reached, and what it runs. */
export const commonRecord = {
  version: Type.Literal(1),
  instanceId: Type.String(),
  runtimeId: Type.String(),
  sandboxId: Type.String(),
  /** The agent's token: without it nobody can command the runtime. */
  token: Type.String(),
  image: Type.String(),
  createdAt: Type.String(),
  sandbox: Type.Optional(WrittenNote),
};
