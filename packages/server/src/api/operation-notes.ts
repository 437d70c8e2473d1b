/** What an operation does beyond its one-line summary, and a request that it takes. */
export interface OperationNote {
  readonly description: string;
  /** A JSON body, held against the operation's schema by a test. */
  readonly example?: unknown;
}

/**
 * By operation id. Apart from the routes, which say what a request is made of: this is prose, and longer than most
 * handlers.
 */
export const operationNotes: Readonly<Record<string, OperationNote>> = {
  spawnSandbox: {
    description:
      "Answers when commands can run in it. Every field may be left out. With an Idempotency-Key a repeated request is answered with the first one's sandbox. Without a place it is refused (429), or waits where defaults.spawn_overflow is queue.",
    example: { image: "host", ttl: "10m", memory_mb: 512, metadata: { job: "42" }, env: { LANG: "C.UTF-8" } },
  },
  acquireSandbox: {
    description:
      "Answers 200 with the owner's living sandbox of this name, which may be unhealthy, and 201 with a new one when there is none; one that is being made or destroyed is waited for. However many ask at once, one sandbox is made. The other fields are for a new one; what differs in a living one stays as it is.",
    example: { name: "web", ttl: "10m" },
  },
  checkAdmission: {
    description:
      "Takes a spawn's body and answers what that spawn would meet, with the counts it is decided by. Nothing is created or reserved.",
    example: { ttl: "1h" },
  },
  listSandboxes: {
    description:
      "metadata.<key>=<value> filters by label, by at most 16 of them. A page may be short; X-Next-Cursor is set while there is more.",
  },
  listSandboxStats: {
    description:
      "The list of sandboxes with the same filters, and beside each that runs what GET /sandboxes/{id}/stats answers. One that does not tell within two seconds is there without stats. A page has at most 100; X-Next-Cursor is set while there is more.",
  },
  getSandbox: {
    description:
      "404 for a destroyed one, saying when and how it ended; the list with state=destroyed has those until store.retention has passed.",
  },
  destroySandbox: {
    description:
      "Ends everything in it. A spawn that waits for a place is taken out of the queue. A destroyed sandbox answers 200 again; 404 is for an id never seen.",
  },
  pruneSandboxes: { description: "Those whose time is over, without waiting for them to be found." },
  extendSandbox: {
    description:
      "It lives for ttl from now, longer or shorter than before. Above the largest ttl the request is refused and nothing changes.",
    example: { ttl: "1h" },
  },
  getSandboxLogs: {
    description: "What its agent and, on docker, the container wrote; not the output of commands.",
  },
  getSandboxStats: {
    description:
      "From the host's control groups where there are some, else as seen inside. A figure that the provider cannot read is left out.",
  },
  getPreview: {
    description:
      "For a browser, also before anything listens there: the page then waits. Where preview.access is signed the address is a link that lets whoever has it in until expires_at. 400 says what to configure where no such address leads here, and what cannot have previews: providers without the capability ports, sandboxes on the machine's own network.",
  },
  openTunnel: {
    description:
      "Dialled before the handshake is answered: 502 when nothing listens. Closed with 1000 when both directions have ended, 1011 when the connection inside broke, 1001 when the service stops.",
  },
  exec: {
    description:
      "Without stream the answer comes when the command has ended, with the first exec.max_output of each output at most. With stream it is NDJSON: output as it comes, and a last line with stream exit; a stream without that line was cut, and the command can be picked up through its id (X-Exec-ID) for exec.disconnect_grace. Its whole process tree ends with it and at its deadline.",
    example: { command: "python3 -c 'print(6 * 7)'", timeout: "10s", env: { PYTHONHASHSEED: "0" } },
  },
  listSnapshots: {
    description: "Of images, by providers with the capability snapshots; without one the answer is empty.",
  },
  getPoolStatus: {
    description:
      "While pool mode is off the answer is enabled: false and nothing else. A VM is there for as long as one of its users has a sandbox.",
  },
  listWorkers: { description: "The service itself is `local`; there are no others yet." },
  getWorker: { description: "Of `local`, its last sign of life is now." },
  deleteWorker: {
    description:
      "It is there again with its next heartbeat: `local` within 30 seconds. What it runs is not touched.",
  },
  reportWorker: {
    description:
      "For repairs of the registry. Of `local` it is a sign of life, and status draining or online begins or ends its drain; the other fields it knows by itself.",
    example: { status: "online" },
  },
  drainWorker: {
    description:
      "New spawns, and those that wait for a place, are refused (503 with reason worker_unavailable); GET /ready is 503. Sandboxes that are there live on. It outlasts a restart. Doing it again changes nothing.",
  },
  endDrainOfWorker: { description: "Doing it again changes nothing." },
  createKey: {
    description:
      "The answer has the key, which is told this once; the service keeps its SHA-256. It counts from the next request on. Refused (409) while auth is off.",
    example: { name: "ci", owner_id: "acme", scopes: ["read", "write"], ttl: "720h" },
  },
  listKeys: { description: "Those of the configuration and those made here, never the keys themselves." },
  revokeKey: {
    description:
      "Requests with it are 401 from now on, and what it has open ends: streams, transfers, WebSockets. One of the configuration is 409.",
  },
  createTicket: {
    description:
      "For browsers, which cannot send a key with a WebSocket: offer it as the subprotocol ticket.<ticket> beside another, or as the query parameter ticket. Good for one WebSocket to the sandbox, within a minute.",
    example: { sandbox_id: "sb-k3v9x0a1b2c3" },
  },
  execWebSocket: {
    description:
      "The first message is `start`; see WsClientMessage and WsServerMessage. The handshake answers 404 for an unknown sandbox. Closed with 1000 after the exit, with 1001 when the service stops: the command goes on and can be picked up.",
  },
  startExec: {
    description:
      "Answers as soon as it runs. It needs no reader; its output is kept (exec.ring_bytes, the oldest goes first) and can be followed, its standard input written.",
    example: { command: "make", args: ["-j2"], mode: "argv", workdir: "/workspace" },
  },
  listExecs: { description: "The last 1,000." },
  getExec: { description: "Whether it runs, and how it ended: exit code, signal and reason." },
  killExec: {
    description: "With reason cancelled; it answers when the tree is gone. One that has ended is left alone.",
  },
  getExecOutput: {
    description:
      "Lines carry the offset of their first byte, counted over both outputs. An offset before what is kept begins at the oldest byte kept.",
  },
  signalExec: {
    description: "By name, with or without SIG, or by number.",
    example: { signal: "SIGINT" },
  },
  writeExecStdin: {
    description: "Text, or bytes as base64. close ends the input.",
    example: { data: "hello\n", close: true },
  },
  writeFile: {
    description:
      "Whole or not at all: the file has its name when it is complete. Parents are made. Bytes as they are: PUT, or encoding base64.",
    example: { path: "/workspace/main.py", content: "print(6 * 7)\n" },
  },
  readFile: { description: "As they are, of any length, one range of them where Range asks for it." },
  uploadFile: { description: "Of any length, held in memory by nobody. Whole or not at all." },
  deleteFile: { description: "A directory that is not empty needs recursive=true, else 409." },
  readArchive: { description: "Owners, modes, times and symlinks as they are. It stays on one file system." },
  writeArchive: { description: "The directory is made. A name that leads out of it is refused." },
  chmodFile: {
    description: "Octal, as a text. Symlinks are followed.",
    example: { path: "/workspace/run.sh", mode: "0755" },
  },
  globFiles: { description: "`*`, `?`, `[…]`, `{a,b}` and `**`. No match is an empty list." },
  listFiles: { description: "With depth, what lies below as well." },
  moveFile: {
    description:
      "Makes parents and replaces a file, or by a directory one that is empty; a full one is 409. A file onto a directory, or a directory onto a file, is 400.",
    example: { old_path: "/workspace/a", new_path: "/workspace/b" },
  },
  statFile: { description: "Name, size, mode, owner, time, kind." },
  watchFiles: {
    description: "Created, written, moved, removed. An overflow event says that some were not told.",
  },
  streamEvents: {
    description:
      "Server-sent events, each with an id that increases. Last-Event-ID replays what came after it. Where events were forgotten since, or a reader falls too far behind, an events.dropped comes in place of those that are missing, whatever types are selected. 0 replays all that is kept.",
  },
  createTemplate: {
    description: "Checked as a spawn is, but for limits and whether its provider and image are there.",
    example: { name: "python", image: "host", ttl: "15m", memory_mb: 512, metadata: { team: "red" } },
  },
  listTemplates: { description: "By name. X-Next-Cursor is set while there are more." },
  getTemplate: { description: "What was not given is not answered." },
  replaceTemplate: {
    description: "Everything but the name; what is left out is gone. Sandboxes that were made from it stay.",
    example: { image: "host", ttl: "30m" },
  },
  deleteTemplate: { description: "Sandboxes that were made from it stay." },
  spawnFromTemplate: {
    description:
      "As POST /sandboxes with the field template: fields of the body override the template's own, labels and environment key by key, and the label template names it. No body at all is fine.",
    example: { ttl: "5m" },
  },
  listQuotas: { description: "X-Next-Cursor is set while there are more." },
  getMetrics: {
    description:
      "Counters since the start of the service, and what there is now. Read from memory: it costs the same however many sandboxes there are, and asks no provider.",
  },
  getPrometheusMetrics: {
    description:
      "The same counters under names that begin with service_, with histograms of waits and latencies. Let it be scraped here with a key that reads, and not below /admin, where every call is in the audit history.",
  },
  getDiagnostics: {
    description:
      "Read-only, and fit to be handed on: no owner, sandbox, key, address, path of the host or text of a backend is named. Providers are told as they were found last.",
  },
  getQuotaSummary: { description: "Numbers alone; no owner is named." },
  getQuota: { description: "As it was saved; 0 and 0s stand for the default. Without one 404." },
  saveQuota: {
    description:
      "Replaces what was there; what is left out inherits the default. It holds from now on, for spawns that wait too; running sandboxes stay.",
    example: { max_sandboxes: 5, max_ttl: "2h", max_exec_timeout: "10m" },
  },
  getQuotaUsage: { description: "Defaults filled in, with a quota or without one; 0: no limit." },
  deleteQuota: { description: "The defaults hold again." },
  listAudit: {
    description:
      "Every call below /admin, refused ones too, and every change of quotas and templates. Filters are joined; format=csv answers CSV. X-Next-Cursor is set while there are older ones. What is answered has been written before.",
  },
  getHealth: { description: "Version and time since the start." },
  getLiveness: { description: "For a supervisor that restarts what hangs. Says nothing about providers." },
  getReadiness: {
    description: "For a load balancer: 503, with the reason, while a spawn could not succeed.",
  },
  listProviders: { description: "With what each can do, and what was wrong when it was looked at last." },
  getProvider: { description: "With its settings, as text, and how many sandboxes it runs." },
  testProviders: { description: "Makes something and removes it again where that is the only way to know." },
};
