import {
  GivenSandboxName,
  longestImageName,
  mostMemoryMb,
  mostMetadataBytes,
  mostVcpus,
  ownerIdFault,
  UserName,
  Workdir,
} from "@alcove/wire";
import { Compile } from "typebox/compile";
import type { WrittenNote } from "./sandbox-note.ts";

const name = Compile(GivenSandboxName);
const user = Compile(UserName);
const workdir = Compile(Workdir);
const run = /^[0-9a-f]{1,64}$/;

/** Whether a note says only what a request could have asked for, and dates as they are written down. */
export function asRequested(note: { image: string; createdAt: string; sandbox: WrittenNote }): boolean {
  const { sandbox } = note;
  return (
    isImage(note.image) &&
    isImage(sandbox.image) &&
    isDate(note.createdAt) &&
    (sandbox.expiresAt === undefined || isDate(sandbox.expiresAt)) &&
    isWithin(sandbox.memoryMb, mostMemoryMb) &&
    isWithin(sandbox.vcpus, mostVcpus) &&
    ownerIdFault(sandbox.ownerId) === undefined &&
    (sandbox.name === undefined || name.Check(sandbox.name)) &&
    (sandbox.user === undefined || user.Check(sandbox.user)) &&
    (sandbox.workdir === undefined || workdir.Check(sandbox.workdir)) &&
    (sandbox.birth === undefined || run.test(sandbox.birth.run)) &&
    Buffer.byteLength(JSON.stringify(sandbox.metadata)) <= mostMetadataBytes
  );
}

function isImage(image: string): boolean {
  return image !== "" && image.length <= longestImageName;
}

function isWithin(value: number, most: number): boolean {
  return value > 0 && value <= most;
}

function isDate(text: string): boolean {
  const ms = Date.parse(text);
  return /^\d{4}-/.test(text) && !Number.isNaN(ms) && new Date(ms).toISOString() === text;
}
