import { type Static, Type } from "typebox";

/** Absolute inside the sandbox; checked in core: starts with `/`, no NUL, at most 4,096 bytes. */
const FilePath = Type.String({ minLength: 1, description: "Absolute path inside the sandbox." });

/** Spec §2, FileInfo; `symlink_target`, `owner`, `group`, `type` are additive. */
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
    mode: Type.Optional(Type.String({ description: "Octal; default 0644." })),
    encoding: Type.Optional(Type.Enum(["utf8", "base64"])),
    user: Type.Optional(Type.String({ maxLength: 128 })),
  },
  { $id: "WriteFileRequest", additionalProperties: false },
);
export type WriteFileRequest = Static<typeof WriteFileRequest>;

export const MoveFileRequest = Type.Object(
  { old_path: FilePath, new_path: FilePath },
  { $id: "MoveFileRequest", additionalProperties: false },
);
export type MoveFileRequest = Static<typeof MoveFileRequest>;

export const ChmodFileRequest = Type.Object(
  { path: FilePath, mode: Type.String() },
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
