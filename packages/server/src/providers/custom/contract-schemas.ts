import { Type } from "typebox";

/** What a backend may announce. What it leaves out is not asked of it. */
export const backendCapabilities = ["files", "reattach", "signals", "process_tree", "expiry"] as const;

const Whole = (description: string) => Type.Integer({ minimum: 0, description });
const Optional = { text: Type.Optional(Type.String()) };
const Texts = Type.Record(Type.String(), Type.String());

/**
 * One source of the JSON Schemas of docs/custom-provider.md: requests as they are sent, which the compiler holds against them where
 * each is made, and answers as they are read.
 */
export const Health = Type.Object(
  {
    status: Type.String({ description: "ok; anything else is shown to the operator as why it is not." }),
    capabilities: Type.Array(Type.String(), {
      description: `Of ${backendCapabilities.join(", ")}; others are ignored.`,
    }),
  },
  { title: "Health" },
);

export const SpawnRequest = Type.Object(
  {
    id: Type.String({ description: "Names the sandbox in every call: letters, digits, - and _." }),
    image: Type.String({ description: "Whatever the backend makes of it; 404 for one it does not have." }),
    memory_mb: Whole("Megabytes."),
    vcpus: Type.Number({ exclusiveMinimum: 0 }),
    env: Texts,
    user: Optional.text,
    workdir: Type.Optional(Type.String({ description: "Made when it is not there." })),
    network: Type.Union([Type.Literal("none"), Type.Literal("outbound")]),
    expires_in_ms: Type.Union([Whole("Milliseconds until the sandbox is to end by itself."), Type.Null()]),
    labels: Type.Record(Type.String(), Type.String(), {
      description: "Kept with the sandbox and given back unchanged.",
    }),
  },
  { title: "SpawnRequest" },
);

export const SandboxAnswer = Type.Object(
  {
    id: Type.String(),
    state: Type.String({ description: "running; anything else counts as ended." }),
    labels: Type.Optional(Texts),
    image: Type.Optional(Type.String({ description: "The image as resolved." })),
  },
  { title: "Sandbox" },
);

export const SandboxList = Type.Object({ sandboxes: Type.Array(SandboxAnswer) }, { title: "SandboxList" });

export const ExpiryRequest = Type.Object(
  { expires_in_ms: Type.Union([Whole("Milliseconds from now."), Type.Null()]) },
  { title: "ExpiryRequest" },
);

export const ExecRequest = Type.Object(
  {
    exec_id: Type.String({ description: "Names the command in its sandbox." }),
    argv: Type.Array(Type.String(), { minItems: 1, description: "Program and arguments; no shell." }),
    env: Texts,
    workdir: Type.String({ description: "400 where it does not exist." }),
    user: Optional.text,
    stdin: Type.Boolean({ description: "false: standard input is empty." }),
    timeout_ms: Whole("The backend kills the command when it runs longer."),
  },
  { title: "ExecRequest" },
);

const base64 = Type.String({
  description: "Base64: bytes, not text. At most 262144 bytes of output in a line.",
});

/** One line of the stream of a command. Types that are not known are skipped. */
export const ExecEvents = {
  start: Type.Object(
    { type: Type.Literal("start"), pid: Whole("To tell it by; best as it is seen inside.") },
    { title: "ExecStart" },
  ),
  stdout: Type.Object({ type: Type.Literal("stdout"), data: base64 }, { title: "ExecStdout" }),
  stderr: Type.Object({ type: Type.Literal("stderr"), data: base64 }, { title: "ExecStderr" }),
  exit: Type.Object(
    {
      type: Type.Literal("exit"),
      exit_code: Type.Integer({ minimum: 0, maximum: 255 }),
      signal: Type.Optional(
        Type.String({ description: "SIGTERM and so on; the exit code is then 128 + n." }),
      ),
      start_error: Type.Optional(
        Type.String({
          description:
            "Why the program could not be started, by its name: exit 126 or 127. Told in standard error where nothing else was.",
        }),
      ),
    },
    { title: "ExecExit" },
  ),
};

export const SignalRequest = Type.Object(
  { signal: Type.Integer({ minimum: 1, maximum: 64 }) },
  { title: "SignalRequest" },
);

export const FileAnswer = Type.Object(
  {
    path: Type.String(),
    type: Type.String({ description: "file, dir, symlink; fifo, socket, char_device, block_device." }),
    size: Whole("Bytes."),
    mode: Type.Integer({ minimum: 0, description: "Permission bits, as a number: 420 is 0644." }),
    uid: Type.Integer({ minimum: 0 }),
    gid: Type.Integer({ minimum: 0 }),
    modified_ms: Type.Number({ description: "Milliseconds since 1970." }),
    symlink_target: Optional.text,
  },
  { title: "File" },
);

export const FileList = Type.Object({ entries: Type.Array(FileAnswer) }, { title: "FileList" });

export const MoveRequest = Type.Object({ from: Type.String(), to: Type.String() }, { title: "MoveRequest" });
export const ModeRequest = Type.Object(
  { path: Type.String(), mode: Type.Integer({ minimum: 0, maximum: 0o7777 }) },
  { title: "ModeRequest" },
);
export const MakeDirectoryRequest = Type.Object(
  {
    path: Type.String(),
    parents: Type.Boolean({ description: "true: parents are made, and one that exists is fine." }),
    mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o7777 })),
    user: Optional.text,
  },
  { title: "MakeDirectoryRequest" },
);

/** In the order of the page. */
export const contractSchemas = [
  Health,
  SpawnRequest,
  SandboxAnswer,
  SandboxList,
  ExpiryRequest,
  ExecRequest,
  ...Object.values(ExecEvents),
  SignalRequest,
  FileAnswer,
  FileList,
  MoveRequest,
  ModeRequest,
  MakeDirectoryRequest,
];
