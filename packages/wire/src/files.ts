import { type Static, Type } from "typebox";
import { base64When, FileMode, FilePath, OptionalFileMode, UserName } from "./texts.ts";

/** See docs/api/files.md; `symlink_target`, `owner`, `group`, `type` are additive. */
export const FileInfo = Type.Object(
  {
    name: Type.String(),
    path: Type.String(),
    size: Type.Integer(),
    is_dir: Type.Boolean(),
    mod_time: Type.String({ format: "date-time" }),
    mode: Type.String({ description: "Octal with a leading zero: 0644." }),
    type: Type.Enum(["file", "dir", "symlink", "fifo", "socket", "char_device", "block_device", "unknown"]),
    uid: Type.Integer(),
    gid: Type.Integer(),
    symlink_target: Type.Optional(Type.String()),
  },
  { $id: "FileInfo" },
);
export type FileInfo = Static<typeof FileInfo>;

export const WriteFileRequest = Type.Object(
  {
    path: FilePath,
    content: Type.String(),
    mode: Type.Optional(OptionalFileMode),
    encoding: Type.Optional(Type.Enum(["utf8", "base64"])),
    user: Type.Optional(UserName),
  },
  { $id: "WriteFileRequest", additionalProperties: false, ...base64When("content") },
);
export type WriteFileRequest = Static<typeof WriteFileRequest>;

export const MoveFileRequest = Type.Object(
  { old_path: FilePath, new_path: FilePath },
  { $id: "MoveFileRequest", additionalProperties: false },
);
export type MoveFileRequest = Static<typeof MoveFileRequest>;

export const ChmodFileRequest = Type.Object(
  { path: FilePath, mode: FileMode },
  { $id: "ChmodFileRequest", additionalProperties: false },
);
export type ChmodFileRequest = Static<typeof ChmodFileRequest>;

/** One message of `GET /sandboxes/{id}/files/watch`. */
export const WatchEvent = Type.Object(
  { type: Type.Enum(["create", "write", "remove", "rename", "chmod", "overflow"]), path: Type.String() },
  { $id: "WatchEvent" },
);
export type WatchEvent = Static<typeof WatchEvent>;

/** Answer of `PUT /sandboxes/{id}/files/archive`. */
export const UnpackResult = Type.Object(
  { status: Type.Literal("unpacked"), entries: Type.Integer() },
  { $id: "UnpackResult" },
);
export type UnpackResult = Static<typeof UnpackResult>;
