/**
 * Every operation of the agent that the service asks for, and what the channel has to know of it; docs/agent-protocol.md.
 *
 * `again`: it may be sent again when an idle connection breaks under it: the agent may have carried it out before, and the
 * second time does no harm and answers as the first. `exec.start` and `exec.stdin_close` are refused the second time; who asks
 * for them takes that as the answer (`Operation.sentAgain`).
 *
 * `waits`: in line with what others ask for; "threads" in that for the few threads that an agent has for files; "unrefused" even where the line is full, for those that come one for each command
 * that lost its readers; "never" for what only the service asks for, a few at a time.
 */
export const knownOperations = {
  "sandbox.configure": { again: true, waits: "never" },
  "sandbox.info": { again: true, waits: "line" },
  "sandbox.stats": { again: true, waits: "threads" },
  "sandbox.events": { again: true, waits: "never" },
  "sandbox.expiry": { again: true, waits: "never" },
  "sandbox.renew": { again: true, waits: "never" },
  "sandbox.shutdown": { again: true, waits: "never" },
  "exec.start": { again: true, waits: "line" },
  "exec.group": { again: true, waits: "line" },
  "exec.attach": { again: true, waits: "line" },
  "exec.get": { again: true, waits: "line" },
  "exec.list": { again: true, waits: "line" },
  "exec.stdin": { again: false, waits: "line" },
  "exec.stdin_close": { again: true, waits: "line" },
  "exec.resize": { again: true, waits: "line" },
  "exec.signal": { again: false, waits: "line" },
  "exec.kill": { again: true, waits: "line" },
  "exec.grace": { again: true, waits: "unrefused" },
  "file.stat": { again: true, waits: "threads" },
  "file.list": { again: true, waits: "threads" },
  "file.read": { again: true, waits: "threads" },
  "file.write": { again: false, waits: "threads" },
  "file.mkdir": { again: false, waits: "threads" },
  "file.move": { again: false, waits: "threads" },
  "file.remove": { again: false, waits: "threads" },
  "file.chmod": { again: true, waits: "threads" },
  "file.glob": { again: true, waits: "threads" },
  "file.archive": { again: true, waits: "threads" },
  "file.unpack": { again: false, waits: "threads" },
  "file.watch": { again: true, waits: "line" },
  "port.dial": { again: true, waits: "line" },
} as const satisfies Record<string, { again: boolean; waits: "line" | "threads" | "unrefused" | "never" }>;

export type AgentOperationName = keyof typeof knownOperations;
