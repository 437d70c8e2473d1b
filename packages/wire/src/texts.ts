import { Type } from "typebox";
import { sandboxNamePattern } from "./names.ts";

/**
 * Texts that requests carry, each described as exactly as it is accepted. `x-rule: core` says that core checks what the
 * pattern describes and answers in better words; the validator leaves those keywords out, the OpenAPI page has them.
 */
const ruledByCore = { "x-rule": "core" } as const;

const group = String.raw`\d+(?:\.\d+)?(?:ms|h|m|s)`;
const zeroGroup = String.raw`0+(?:\.0+)?(?:ms|h|m|s)`;
const someGroup = String.raw`(?:0*[1-9]\d*(?:\.\d+)?|0+\.0*[1-9]\d*)(?:ms|h|m|s)`;
const duration = `(?:${zeroGroup})*${someGroup}(?:${group})*`;

export const Duration = Type.String({
  description: "Groups of number and unit: h, m, s, ms. Example: 1h30m.",
  examples: ["30s"],
});

/** Longer than nothing. */
export const GivenDuration = Type.String({
  ...ruledByCore,
  description: "Groups of number and unit: h, m, s, ms.",
  pattern: `^${duration}$`,
  maxLength: 64,
  examples: ["30s", "1h30m"],
});

export const OptionalDuration = Type.String({
  ...ruledByCore,
  description: "Groups of number and unit: h, m, s, ms. Empty: not given.",
  pattern: `^(?:${duration})?$`,
  maxLength: 64,
  examples: ["30s", "1h30m"],
});

const host = String.raw`[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::\d{1,5})?`;
const name = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";

export const imageNamePattern = `^(?:(?:${host}/)?${name}(?:/${name})*(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?)?$`;
export const longestImageName = 300;

export const ImageName = Type.String({
  ...ruledByCore,
  description:
    "Image, as docker names it, or `host` for the machine's own root. Empty: the provider's default.",
  pattern: imageNamePattern,
  maxLength: longestImageName,
  examples: ["debian:12", "host"],
});

const longestOwnerId = 128;

export const OwnerId = Type.String({
  ...ruledByCore,
  description:
    "Owner: at most 128 characters, no whitespace, control characters or path separators. Empty: nobody's.",
  pattern: String.raw`^[^\s/\\\u0000-\u001f\u007f-\u00a0\u2028\u2029]*$`,
  maxLength: longestOwnerId,
  examples: ["acme"],
});

/** @returns what is wrong with an owner id, without blanks around it; undefined when it may be one, or is empty. */
export function ownerIdFault(owner: string): string | undefined {
  if ([...owner].length > longestOwnerId) return `is longer than ${longestOwnerId} characters`;
  if (/[\p{White_Space}\p{Z}]/u.test(owner)) return "must not contain whitespace";
  if (/[\p{Cc}\p{Cs}\u2028\u2029]/u.test(owner)) return "must not contain control characters";
  return /[/\\]/.test(owner) ? "must not contain path separators" : undefined;
}

/** Of a sandbox, where it is needed. */
export const GivenSandboxName = Type.String({
  ...ruledByCore,
  description:
    "Name among the owner's living sandboxes: 1 to 63 of a to z, 0 to 9 and `-`, with a letter or digit at both ends and not beginning with `sb-`.",
  pattern: `^${sandboxNamePattern}$`,
  maxLength: 63,
  examples: ["web"],
});

export const SandboxName = Type.String({
  ...ruledByCore,
  description:
    "Name among the owner's living sandboxes: 1 to 63 of a to z, 0 to 9 and `-`, with a letter or digit at both ends and not beginning with `sb-`. Empty: none.",
  pattern: `^(?:${sandboxNamePattern})?$`,
  maxLength: 63,
  examples: ["web"],
});

export const UserName = Type.String({
  description: "Name or uid[:gid]. Empty: the default.",
  ...ruledByCore,
  pattern: String.raw`^[^\s/\u0000-\u001f\u007f-\u00a0\u2028\u2029]*$`,
  maxLength: 128,
  examples: ["root", "1000:1000"],
});

export const Workdir = Type.String({
  ...ruledByCore,
  description: "Absolute working directory. Empty: the default.",
  pattern: String.raw`^(?:/[^\u0000]*)?$`,
  maxLength: 4_096,
  examples: ["/workspace"],
});

export const FilePath = Type.String({
  ...ruledByCore,
  description: "Absolute path inside the sandbox, at most 4,096 bytes.",
  pattern: String.raw`^/[^\u0000]*$`,
  minLength: 1,
  maxLength: 4_096,
  examples: ["/workspace/main.py"],
});

export const FileMode = Type.String({
  ...ruledByCore,
  description: "Permission bits, octal.",
  pattern: "^(?:0o)?(?:[0-7]{1,4}|0[0-7]{4})$",
  examples: ["644", "0755"],
});

export const OptionalFileMode = Type.String({
  ...ruledByCore,
  description: "Permission bits, octal. Empty: 0644.",
  pattern: "^(?:(?:0o)?(?:[0-7]{1,4}|0[0-7]{4}))?$",
  examples: ["644", "0755"],
});

/** Text without a NUL. */
export const ArgumentText = Type.String({
  ...ruledByCore,
  pattern: String.raw`^[^\u0000]*$`,
  maxLength: 1_048_576,
});

export const CommandText = Type.String({
  ...ruledByCore,
  description: "Command line, or the program in mode argv.",
  pattern: String.raw`^[^\u0000]+$`,
  minLength: 1,
  maxLength: 1_048_576,
  examples: ["echo hello"],
});

/** Environment variables. A name holds no `=` and no NUL, a value no NUL. */
export const Env = Type.Record(Type.String({ minLength: 1, maxLength: 4_096 }), ArgumentText, {
  description: "Environment variables. A name holds no `=` and no NUL, a value no NUL.",
  propertyNames: { ...ruledByCore, pattern: String.raw`^(?!__proto__$)[^=\u0000]+$`, maxLength: 4_096 },
  maxProperties: 4_096,
  examples: [{ LANG: "C.UTF-8" }],
});

const signalNames =
  "HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|TERM|STKFLT|CHLD|CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|POLL|PWR|SYS";

export const Signal = Type.Union(
  [
    Type.String({
      ...ruledByCore,
      minLength: 1,
      maxLength: 16,
      pattern: `^(?:(?:SIG)?(?:${signalNames})|[1-9]|[1-5][0-9]|6[0-4])$`,
    }),
    Type.Integer({ minimum: 1, maximum: 64 }),
  ],
  { description: "Name with or without SIG, or number.", examples: ["TERM"] },
);

const base64 = { pattern: "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$" };

/** For an object whose text is base64 when its `encoding` says so. */
export const base64When = (field: string) => ({
  ...ruledByCore,
  anyOf: [
    { properties: { encoding: { const: "utf8" } } },
    { required: ["encoding"], properties: { encoding: { const: "base64" }, [field]: base64 } },
  ],
});

/** For input: `data` is base64 when `encoding` says so, and an `offset` is of an `input` with a name. */
export const inputWritten = {
  ...ruledByCore,
  anyOf: base64When("data").anyOf.flatMap(({ required = [], properties }) => [
    { required: [...required], properties: { ...properties, offset: false } },
    { required: [...required, "input"], properties },
  ]),
};

/** For a command: `stdin_encoding` is of a `stdin` that is a text. */
export const stdinEncoded = {
  ...ruledByCore,
  anyOf: [
    { properties: { stdin_encoding: false } },
    {
      required: ["stdin", "stdin_encoding"],
      properties: { stdin_encoding: { const: "utf8" }, stdin: { type: "string" } },
    },
    {
      required: ["stdin", "stdin_encoding"],
      properties: { stdin_encoding: { const: "base64" }, stdin: { type: "string", ...base64 } },
    },
  ],
} as const;

/** 0 stands for the default. */
export const countOrDefault = (least: number, most: number, description: string) =>
  Type.Integer({
    ...ruledByCore,
    minimum: 0,
    maximum: most,
    anyOf: [{ const: 0 }, { minimum: least }],
    description: `${description} 0: the default.`,
  });
