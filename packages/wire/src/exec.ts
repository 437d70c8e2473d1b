import { type Static, Type } from "typebox";
import { ErrorBody } from "./errors.ts";
import {
  ArgumentText,
  CommandText,
  Duration,
  Env,
  GivenDuration,
  inputWritten,
  OptionalDuration,
  Signal,
  stdinEncoded,
  UserName,
  Workdir,
} from "./texts.ts";

export const exitReasons = ["exited", "signaled", "timeout", "cancelled", "oom", "lost", "limit"] as const;
export type ExitReason = (typeof exitReasons)[number];

export const limitNames = ["cpu_time", "output_bytes", "memory_mb"] as const;
export type LimitName = (typeof limitNames)[number];

/** What a command may use; one that exceeds it ends with reason `limit`, and `limit` names it. docs/api/exec.md. */
export const ExecLimits = Type.Object(
  {
    cpu_time: Type.Optional(GivenDuration),
    output_bytes: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: Number.MAX_SAFE_INTEGER,
        description: "Of both streams together; what is beyond it is dropped.",
      }),
    ),
    memory_mb: Type.Optional(
      Type.Integer({
        minimum: 4,
        maximum: 16_777_216,
        description:
          "Of all its processes together, what they cache of files included. Needs the capability exec_limits.",
      }),
    ),
    pids: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 4_194_304,
        description:
          "Processes and threads at a time. Starting one more fails inside (EAGAIN) and ends nothing. Needs the capability exec_limits.",
      }),
    ),
  },
  { additionalProperties: false },
);
export type ExecLimits = Static<typeof ExecLimits>;

/** What every form of an exit tells beside its code. */
const endFields = {
  limit: Type.Optional(
    Type.Enum([...limitNames], { description: "Which limit was exceeded; with reason limit." }),
  ),
  usage: Type.Optional(
    Type.Object(
      {
        cpu_ms: Type.Integer({ description: "Processor time, user and system." }),
        max_memory_bytes: Type.Integer({ description: "The most that one of its processes had in memory." }),
        wall_ms: Type.Integer(),
      },
      { description: "Of the command's first process and all that had ended before it." },
    ),
  ),
  oom_kills: Type.Optional(
    Type.Integer({
      description: "Processes of the sandbox killed for memory while the command ran; absent: none.",
    }),
  ),
  error: Type.Optional(
    Type.String({
      description:
        "Why the service ended it, where the reason alone does not tell: input that was given whole with it was lost.",
    }),
  ),
};

export const execIdPattern = "^ex-[a-z0-9]{8,32}$";

/** `ex-` and 8 to 32 of [a-z0-9]; a client may choose it. docs/api/exec.md. */
export const ExecId = Type.String({
  pattern: execIdPattern,
  description: "`ex-` and 8 to 32 of [a-z0-9]",
});

/** Offsets count the bytes of both outputs; beyond this none is exact. */
export const OutputOffset = Type.Integer({
  minimum: 0,
  maximum: Number.MAX_SAFE_INTEGER,
  default: 0,
  description: "Offset of the first byte wanted.",
});

/** Of a reader that follows. docs/api/exec.md. */
export const Lossless = Type.Boolean({
  default: false,
  description: "A detached command, too, waits for this reader for as long as it follows.",
});

const commandFields = {
  command: CommandText,
  args: Type.Optional(Type.Array(ArgumentText, { maxItems: 65_536 })),
  mode: Type.Optional(
    Type.Enum(["shell", "argv"], {
      description: "shell (default): /bin/sh -c, args quoted and appended; argv: no shell.",
    }),
  ),
  env: Type.Optional(Env),
  workdir: Type.Optional(Workdir),
  user: Type.Optional(UserName),
  timeout: Type.Optional(OptionalDuration),
  exec_id: Type.Optional(ExecId),
  tag: Type.Optional(Type.String({ maxLength: 256 })),
  limits: Type.Optional(ExecLimits),
};

/** How output is written: as text, or as base64, which passes any byte. docs/api/exec.md. */
export const OutputEncoding = Type.Enum(["utf8", "base64"], {
  description: "utf8 (default): invalid bytes become U+FFFD; base64: every byte as it was written.",
});
export type OutputEncoding = Static<typeof OutputEncoding>;

const inputEncoding = Type.Optional(
  Type.Enum(["utf8", "base64"], { description: "Of stdin; default utf8." }),
);

/** See docs/api/exec.md. */
export const ExecRequest = Type.Object(
  {
    ...commandFields,
    stream: Type.Optional(Type.Boolean()),
    encoding: Type.Optional(OutputEncoding),
    stdin: Type.Optional(Type.String({ description: "Standard input; it ends after this. Default: empty." })),
    stdin_encoding: inputEncoding,
  },
  { $id: "ExecRequest", additionalProperties: false, ...stdinEncoded },
);
export type ExecRequest = Static<typeof ExecRequest>;

const windowSize = {
  cols: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 65_535,
      description: "Columns of the terminal, which this asks for unless tty is false; default 80.",
    }),
  ),
  rows: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: 65_535,
      description: "Rows of the terminal, which this asks for unless tty is false; default 24.",
    }),
  ),
};

const tty = Type.Optional(Type.Boolean({ description: "A terminal; default: when cols or rows are given." }));

/** `POST /sandboxes/{id}/execs`: starts a detached command. docs/api/exec.md. */
export const StartExecRequest = Type.Object(
  {
    ...commandFields,
    stdin: Type.Optional(
      Type.Union([Type.Boolean(), Type.String({ maxLength: 1_048_576 })], {
        description: "false closes it at once; a text is all of it, at most 1 MiB; default open.",
      }),
    ),
    stdin_encoding: inputEncoding,
    tty,
    ...windowSize,
  },
  { $id: "StartExecRequest", additionalProperties: false, ...stdinEncoded },
);
export type StartExecRequest = Static<typeof StartExecRequest>;

export const StartExecResponse = Type.Object(
  { exec_id: Type.String(), pid: Type.Integer() },
  { $id: "StartExecResponse" },
);

/** See docs/api/exec.md; `truncated`, `reason`, `signal`, `exec_id` are additive. */
export const ExecResult = Type.Object(
  {
    exit_code: Type.Integer(),
    stdout: Type.String(),
    stderr: Type.String(),
    duration: Duration,
    exec_id: Type.String(),
    reason: Type.Enum([...exitReasons]),
    signal: Type.Optional(Type.String()),
    ...endFields,
    truncated: Type.Optional(
      Type.Boolean({ description: "Not all that was written is here: it was too much, or some was lost." }),
    ),
    lost_bytes: Type.Optional(
      Type.Integer({
        description: "Written, and lost when a connection broke: missing from stdout and stderr together.",
      }),
    ),
    encoding: Type.Optional(
      Type.Literal("base64", { description: "Of stdout and stderr; absent: they are text." }),
    ),
  },
  { $id: "ExecResult" },
);
export type ExecResult = Static<typeof ExecResult>;

/** A buffered command that its deadline ended: the error, and all that a result has. */
export const ExecTimeout = Type.Object(
  { code: Type.Literal("timeout"), message: ErrorBody.properties.message, ...ExecResult.properties },
  { $id: "ExecTimeout" },
);
export type ExecTimeout = Static<typeof ExecTimeout>;

/** Tells a gap, in output and at an exit. */
const lostBytes = Type.Optional(
  Type.Integer({
    description:
      "Bytes of output that were asked for and are missing just before this, because they are not kept any more; absent: none.",
  }),
);

const outputFields = {
  data: Type.String(),
  offset: Type.Optional(
    Type.Integer({
      description:
        "Of the first byte, over both streams; reading goes on at this plus the number of bytes in data, or at next_offset.",
    }),
  ),
  next_offset: Type.Optional(
    Type.Integer({
      description:
        "Where reading goes on, of text in which U+FFFD stands for bytes that are no UTF-8; absent: offset plus the number of bytes in data.",
    }),
  ),
  encoding: Type.Optional(Type.Literal("base64", { description: "Of data; absent: it is text." })),
  notice: Type.Optional(
    Type.Literal(true, {
      description: "Said by the service, not by the command; takes no place in the output.",
    }),
  ),
  lost_bytes: lostBytes,
};

/** Names the variants of a union by the field that tells them apart, for models generated from the document. */
const discriminatedBy = (propertyName: string, variants: Readonly<Record<string, string>>) => ({
  discriminator: {
    propertyName,
    mapping: Object.fromEntries(
      Object.entries(variants).map(([value, name]) => [value, `#/components/schemas/${name}`]),
    ),
  },
});

/** One line of an NDJSON exec stream. The last line has stream `exit`. docs/api/exec.md. */
export const ExecStreamChunk = Type.Union(
  [
    Type.Object({ stream: Type.Enum(["stdout", "stderr"]), ...outputFields }, { $id: "ExecOutputLine" }),
    Type.Object(
      {
        stream: Type.Literal("exit"),
        data: Type.String(),
        exit_code: Type.Integer(),
        reason: Type.Enum([...exitReasons]),
        signal: Type.Optional(Type.String()),
        duration: Duration,
        ...endFields,
        lost_bytes: lostBytes,
      },
      { $id: "ExecExitLine" },
    ),
  ],
  {
    $id: "ExecStreamChunk",
    ...discriminatedBy("stream", {
      stdout: "ExecOutputLine",
      stderr: "ExecOutputLine",
      exit: "ExecExitLine",
    }),
  },
);
export type ExecStreamChunk = Static<typeof ExecStreamChunk>;

/** A command known to a sandbox, running or ended. docs/api/exec.md. */
export const ExecRecord = Type.Object(
  {
    exec_id: Type.String(),
    pid: Type.Integer({ description: "As seen inside the sandbox." }),
    state: Type.Enum(["running", "exited"]),
    command: Type.String(),
    args: Type.Array(Type.String()),
    tty: Type.Boolean(),
    tag: Type.Optional(Type.String()),
    started_at: Type.String({ format: "date-time" }),
    output_bytes: Type.Integer({
      description: "Bytes of both streams so far; the next byte has this offset.",
    }),
    first_offset: Type.Integer({ description: "Offset of the oldest byte still kept." }),
    ended_at: Type.Optional(Type.String({ format: "date-time" })),
    exit_code: Type.Optional(Type.Integer()),
    signal: Type.Optional(Type.String()),
    reason: Type.Optional(Type.Enum([...exitReasons])),
    duration: Type.Optional(Duration),
    ...endFields,
  },
  { $id: "ExecRecord" },
);
export type ExecRecord = Static<typeof ExecRecord>;

const inputNamePattern = "^[A-Za-z0-9_-]{1,64}$";
/** Names the standard input of a connection, so that a later one can go on with it. docs/api/exec.md. */
export const InputName = Type.String({
  pattern: inputNamePattern,
  description:
    "1 to 64 letters, digits, `_` and `-`. It names the input of this connection: messages of type input tell how much of it has arrived. A connection that attaches with the same name goes on with it.",
});

export const StdinRequest = Type.Object(
  {
    data: Type.Optional(Type.String()),
    encoding: Type.Optional(Type.Enum(["utf8", "base64"])),
    close: Type.Optional(Type.Boolean()),
    input: Type.Optional(
      Type.String({
        pattern: inputNamePattern,
        description:
          "1 to 64 letters, digits, `_` and `-`. It names the input that data is of: what was taken of it before, whoever sent it, is not taken again. That of a command whose stdin was given whole is its exec_id.",
      }),
    ),
    offset: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: Number.MAX_SAFE_INTEGER,
        description: "Of the first byte of data in the input of that name; 0 when left out.",
      }),
    ),
  },
  { $id: "StdinRequest", additionalProperties: false, ...inputWritten },
);
export type StdinRequest = Static<typeof StdinRequest>;
export const StdinResponse = Type.Object(
  {
    status: Type.Literal("written"),
    taken: Type.Optional(
      Type.Integer({ description: "With an input: bytes of it that were taken by now, whoever sent them." }),
    ),
  },
  { $id: "StdinResponse" },
);
export type StdinResponse = Static<typeof StdinResponse>;

export const SignalRequest = Type.Object(
  {
    signal: Signal,
  },
  { $id: "SignalRequest", additionalProperties: false },
);
export type SignalRequest = Static<typeof SignalRequest>;

/** Messages a WebSocket exec client sends. docs/api/exec.md. */
export const WsClientMessage = Type.Union(
  [
    Type.Object(
      {
        type: Type.Literal("start"),
        ...commandFields,
        encoding: Type.Optional(OutputEncoding),
        tty,
        ...windowSize,
        input: Type.Optional(InputName),
      },
      { $id: "WsStart", additionalProperties: false },
    ),
    Type.Object(
      {
        type: Type.Literal("attach"),
        exec_id: ExecId,
        from: Type.Optional(OutputOffset),
        lossless: Type.Optional(Lossless),
        encoding: Type.Optional(OutputEncoding),
        input: Type.Optional(InputName),
      },
      { $id: "WsAttach", additionalProperties: false },
    ),
    Type.Object(
      {
        type: Type.Literal("stdin"),
        data: Type.String(),
        encoding: Type.Optional(Type.Enum(["utf8", "base64"])),
        close: Type.Optional(Type.Boolean()),
      },
      { $id: "WsStdin", additionalProperties: false },
    ),
    Type.Object(
      {
        type: Type.Literal("resize"),
        cols: Type.Integer({ minimum: 1, maximum: 65_535 }),
        rows: Type.Integer({ minimum: 1, maximum: 65_535 }),
      },
      { $id: "WsResize", additionalProperties: false },
    ),
    Type.Object(
      {
        type: Type.Literal("signal"),
        signal: Signal,
      },
      { $id: "WsSignal", additionalProperties: false },
    ),
  ],
  {
    $id: "WsClientMessage",
    ...discriminatedBy("type", {
      start: "WsStart",
      attach: "WsAttach",
      stdin: "WsStdin",
      resize: "WsResize",
      signal: "WsSignal",
    }),
  },
);
export type WsClientMessage = Static<typeof WsClientMessage>;

/** Messages a WebSocket exec server sends. `exit` carries the additive fields of the NDJSON exit line too. */
export const WsServerMessage = Type.Union(
  [
    Type.Object({ type: Type.Enum(["stdout", "stderr"]), ...outputFields }, { $id: "WsOutput" }),
    Type.Object(
      {
        type: Type.Literal("exit"),
        exit_code: Type.Integer(),
        reason: Type.Enum([...exitReasons]),
        signal: Type.Optional(Type.String()),
        duration: Duration,
        ...endFields,
        lost_bytes: lostBytes,
      },
      { $id: "WsExit" },
    ),
    Type.Object(
      {
        type: Type.Literal("input"),
        taken: Type.Optional(
          Type.Integer({
            description:
              "Bytes of the named input that have arrived, over all its connections; absent: nobody knows.",
          }),
        ),
      },
      { $id: "WsInput", description: "Sent only to connections that named their input." },
    ),
    Type.Object(
      {
        type: Type.Literal("error"),
        code: Type.String(),
        message: Type.String(),
        goes_on: Type.Optional(
          Type.Literal(true, {
            description:
              "Only what a message asked for was refused: the command goes on, and so does the connection. Absent: it is the end.",
          }),
        ),
        retry_after_s: Type.Optional(Type.Integer({ description: "As the header Retry-After, in seconds." })),
      },
      {
        $id: "WsError",
        additionalProperties: true,
        description: "With all that the refusal of a request would have.",
      },
    ),
  ],
  {
    $id: "WsServerMessage",
    ...discriminatedBy("type", {
      stdout: "WsOutput",
      stderr: "WsOutput",
      exit: "WsExit",
      input: "WsInput",
      error: "WsError",
    }),
  },
);
export type WsServerMessage = Static<typeof WsServerMessage>;
