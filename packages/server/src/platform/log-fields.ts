/**
 * The names of fields in log lines, each in one sense; `docs/operations/logs.md` explains them, and a test compares the two.
 * Names are snake_case with the unit at the end.
 */
export const logFields = {
  event: "what happened: `request`, `sandbox.spawn`, `sandbox.destroy`, …",
  outcome:
    "how it ended: `ok`, `refused` (the caller got it wrong), `failed` (we or a backend did), `gone` (it broke off: the caller left, or a stream was cut)",
  request_id:
    "the request it was done for: the caller's `X-Request-ID`, or one made here; absent for what nobody asked for",
  trace_id: "the trace that request is told in, where traces are on",
  span_id: "the part of that trace",
  sandbox_id: "the sandbox",
  runtime_id: "what its provider calls it: the name of its directory, container or process group",
  owner_id:
    "whose it is, absent when it is nobody's; of a request, whom its key is bound to or the request itself names",
  provider: "the provider that runs it",
  exec_id: "the command",
  duration_ms: "how long it took, milliseconds",
  reason: "why: of a destroy `requested`, `expired`, `reconciled` or `shutdown`",
  code: "the error code that the caller got",
  error: "why it failed or was refused, in words",
  err: "an error of ours or of a backend, with its stack and its causes",
  method: "of a request",
  path: "of a request, without its query",
  file_path: "of a file or directory in the sandbox",
  status: "of an answer; 499 when the caller left before there was one",
  principal:
    "who asked: `api_key`, `admin_api_key`, `local` (a service without keys), `anybody` (a route that needs none)",
  remote_addr:
    "where a request came from, as the trusted proxies say: of one that was refused with 401, 403 or 429, and of a call that the audit history could not take",
  user_agent: "of such a call's request",
  name: "of a key or a template",
  scopes: "what a key may do",
  expires_at: "when a key ends; absent: never",
  suppressed: "lines like this one that were left out since the last",
  spans: "parts of traces that did not reach their collector",
} as const satisfies Record<string, string>;
