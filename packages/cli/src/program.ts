import type { ProviderName } from "@alcove/server/config";
import type { KeyScope, NetworkMode, SandboxState } from "@alcove/wire";
import { durationMeant, parseDuration } from "@alcove/wire/light";
import {
  Argument,
  Command,
  InvalidArgumentError,
  Option,
  type OptionValues,
} from "@commander-js/extra-typings";
import type { Shell } from "./commands/completion.ts";
import type { SortKey } from "./commands/top.ts";
import { version } from "./version.ts";

// As in the schemas, which are not loaded for it: every command would start slower. The types hold the two together.
const networks = Object.keys({ none: 0, outbound: 0, host: 0 } satisfies Record<
  NetworkMode,
  0
>) as NetworkMode[];
const providers = Object.keys({
  firecracker: 0,
  native: 0,
  docker: 0,
  e2b: 0,
  custom: 0,
  proot: 0,
  mock: 0,
} satisfies Record<ProviderName, 0>);
const states = Object.keys({
  creating: 0,
  running: 0,
  unhealthy: 0,
  expired: 0,
  error: 0,
  destroyed: 0,
} satisfies Record<SandboxState, 0>) as SandboxState[];
const scopes = Object.keys({ read: 0, write: 0, admin: 0 } satisfies Record<KeyScope, 0>) as KeyScope[];

/** Commands by the words that call them, in the order of the help. */
const groups: readonly { words: readonly string[]; add: (program: Command) => void }[] = [
  { words: ["serve", "doctor", "backup", "restore", "purge", "config", "image"], add: addServiceCommands },
  {
    words: ["spawn", "acquire", "ls", "list", "extend", "kill", "rm", "destroy", "logs"],
    add: addSandboxCommands,
  },
  { words: ["exec", "shell"], add: addExecCommands },
  { words: ["cp", "open", "forward", "events"], add: addFileAndEventCommands },
  { words: ["stats", "top", "drain"], add: addOperatorCommands },
  { words: ["pool"], add: addPoolCommands },
  { words: ["snapshot"], add: addSnapshotCommands },
  { words: ["quota"], add: addQuotaCommands },
  { words: ["key"], add: addKeyCommands },
  { words: ["audit"], add: addAuditCommand },
  { words: ["template"], add: addTemplateCommands },
  { words: ["completion"], add: addCompletionCommand },
];

/**
 * The command line. Actions import what they need when they run, so that each command starts fast.
 * @param word first of the arguments: only the commands around the one that it calls are made, which takes a third of the
 *  time. All are for a word that calls none, such as `help`, and for `completion`, which tells of all.
 */
export function createProgram(word?: string): Command {
  const program = new Command("alcove")
    .description("Disposable, isolated computers for programs.")
    .version(version())
    .enablePositionalOptions()
    .exitOverride()
    .showHelpAfterError("(run with --help for what is allowed)")
    .configureHelp({ showGlobalOptions: false });
  const called = groups.filter(({ words }) => word !== undefined && words.includes(word));
  const made = called.length === 0 || word === "completion" ? groups : called;
  for (const { add } of made) add(program);
  return program;
}

function addServiceCommands(program: Command): void {
  program
    .command("serve")
    .description("start the service here")
    .option("--config <file>", "configuration file")
    .option("--host <address>", "address to listen on")
    .option("--port <number>", "port to listen on; 0: any free one")
    .option("--data-dir <dir>", "where database, images and sockets live")
    .option("--provider <name>", `default provider: auto, ${providers.join(", ")}`)
    .option("--set <key=value>", "any key of the configuration; repeatable", collectPairs)
    .action(async (flags) => (await import("./commands/serve.ts")).serve(flags));
  client(
    program
      .command("doctor")
      .description(
        "tell which providers can work here, and why the others cannot; or how a running service is",
      ),
  )
    .option("--config <file>", "configuration file")
    .option("--data-dir <dir>", "where the service would keep its data")
    .option("--set <key=value>", "any key of the configuration; repeatable", collectPairs)
    .option("--running", "look at the service that runs, over its API; so does --url")
    .option("--json", "print JSON")
    .action(async (flags) => {
      if (flags.running || flags.url !== undefined)
        await (await import("./commands/doctor-running.ts")).doctorOfService(flags);
      else await (await import("./commands/doctor.ts")).doctor(flags);
    });
  program
    .command("backup <folder>")
    .description(
      "copy the database and the identity of an installation into a new folder; its service may run",
    )
    .option("--config <file>", "configuration file")
    .option("--data-dir <dir>", "its directory")
    .option("--set <key=value>", "any key of the configuration; repeatable", collectPairs)
    .action(async (folder, flags) => (await import("./commands/backup.ts")).backup(folder, flags));
  program
    .command("restore")
    .description("make a copied or restored data directory an installation of its own")
    .option("--config <file>", "configuration file")
    .option("--data-dir <dir>", "the directory")
    .option("--set <key=value>", "any key of the configuration; repeatable", collectPairs)
    .option(
      "--new-identity",
      "also where it is the original, which gives up its sandboxes, or its database another's, which loses it; they run on",
    )
    .action(async (flags) => (await import("./commands/restore.ts")).restore(flags));
  program
    .command("purge")
    .description("end every sandbox that a stopped installation left running")
    .option("--config <file>", "configuration file")
    .option("--data-dir <dir>", "its directory")
    .option(
      "--instance <name>",
      "its name, when the directory is gone: control groups are called alcove-NAME",
    )
    .option("--set <key=value>", "any key of the configuration; repeatable", collectPairs)
    .option("--remove", "remove the directory too, and a database elsewhere")
    .option("--yes", "do it")
    .action(async (flags) => (await import("./commands/purge.ts")).purge(flags));
  const config = program.command("config").description("look at the configuration");
  config
    .command("lint")
    .description("check the configuration")
    .option("--config <file>", "configuration file")
    .option("--set <key=value>", "set a key of the configuration; repeatable", collectPairs)
    .option("--production", "also what is unfit for a service that others reach")
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/config-lint.ts")).configLint(flags));
  addImageCommands(program);
}

function addImageCommands(program: Command): void {
  const image = program.command("image").description("root file systems of the native and proot providers");
  const local = <Args extends unknown[], Flags extends OptionValues>(command: Command<Args, Flags>) =>
    command
      .option("--config <file>", "configuration file")
      .option("--data-dir <dir>", "where images live")
      .option("--json", "print JSON");
  local(image.command("list").alias("ls").description("list stored images")).action(async (flags) =>
    (await import("./commands/image.ts")).imageList(flags),
  );
  local(image.command("pull <name>").description("fetch an image from a registry; needs skopeo")).action(
    async (name, flags) => (await import("./commands/image.ts")).imagePull(name, flags),
  );
  local(
    image
      .command("import <source> <name>")
      .description(
        "store a directory, a tar, a `docker save` archive, or docker:<image> of an engine, under a name",
      ),
  ).action(async (source, name, flags) =>
    (await import("./commands/image.ts")).imageImport(source, name, flags),
  );
  local(
    image
      .command("prune")
      .description(
        "remove images that no sandbox uses and nobody wanted for a while; without --yes, tell them",
      ),
  )
    .option("--older-than <duration>", "not wanted for this long, two minutes at least; default: 168h")
    .option("--yes", "do it")
    .action(async (flags) => (await import("./commands/image.ts")).imagePrune(flags));
  local(image.command("rm <name>").alias("remove").description("remove a stored image")).action(
    async (name, flags) => (await import("./commands/image.ts")).imageRemove(name, flags),
  );
}

function addSandboxCommands(program: Command): void {
  spawning(program.command("spawn").description("make a sandbox and print its id"))
    .option("--name <name>", "name, unique among the owner's living sandboxes")
    .option("--idempotency-key <key>", "a repeated call with this key gives the same sandbox")
    .action(async (flags) => (await import("./commands/spawn.ts")).spawn(flags));
  spawning(
    program
      .command("acquire <name>")
      .description(
        "print the id of the owner's living sandbox of this name, which is made when there is none",
      ),
  ).action(async (name, flags) => (await import("./commands/spawn.ts")).acquire(name, flags));
  client(program.command("ls").alias("list").description("list sandboxes, newest first"))
    .option("--json", "print JSON")
    .addOption(new Option("--state <state>", "only this state").choices(states))
    .option("--owner <id>", "only this owner's; else of --user-id, else everybody's")
    .option("-p, --provider <name>", "only this provider's")
    .option("--metadata <key=value>", "only with this label; repeatable", collectPairs)
    .option("-n, --limit <count>", "at most this many", parseCount)
    .option("-q, --quiet", "print ids only")
    .option("--words", "print ids and names, a line each")
    .option("--stats", "also memory in use, disk and commands")
    .action(async (flags) => (await import("./commands/ls.ts")).ls(flags));
  client(
    program
      .command("extend <id>")
      .argument("<ttl>", "time to live, such as 30m", positiveDurationText)
      .description("let a sandbox live for ttl from now"),
  )
    .option("--json", "print JSON")
    .action(async (id, ttl, flags) => (await import("./commands/extend.ts")).extend(id, ttl, flags));
  client(program.command("kill [ids...]").alias("rm").alias("destroy").description("destroy sandboxes"))
    .option("--json", "print JSON")
    .option("--all", "every sandbox of --owner, else of --user-id, else of everybody")
    .option("--owner <id>", "with --all: only this owner's")
    .action(async (ids, flags) => (await import("./commands/kill.ts")).kill(ids, flags));
  client(program.command("logs <id>").description("print the console of a sandbox"))
    .option("--json", "print JSON")
    .option("-n, --lines <count>", "how many lines", parseCount)
    .action(async (id, flags) => (await import("./commands/logs.ts")).logs(id, flags));
}

/** What a sandbox may be made with. */
function spawning<Args extends unknown[], Flags extends OptionValues>(command: Command<Args, Flags>) {
  return client(command)
    .option("--json", "print JSON")
    .option("-i, --image <name>", "image")
    .option("-p, --provider <name>", "provider")
    .option("-m, --memory <mb>", "memory, MB", parseCount)
    .option("--vcpus <count>", "virtual CPUs", parseCount)
    .option("--ttl <duration>", "time to live, such as 30m", positiveDurationText)
    .option("--metadata <key=value>", "label; repeatable", collectPairs)
    .option("--owner <id>", "owner")
    .option("-e, --env <key=value>", "environment variable of every command; repeatable", collectPairs)
    .option("-u, --user <name>", "user commands run as")
    .option("-w, --workdir <path>", "working directory of commands")
    .option("-t, --template <name>", "template to spawn from; other options override its own")
    .addOption(new Option("--network <mode>", "how far it reaches, as the service allows").choices(networks))
    .option("-q, --quiet", "print the id and nothing else");
}

function addExecCommands(program: Command): void {
  const run = <Args extends unknown[], Flags extends OptionValues>(command: Command<Args, Flags>) =>
    client(command)
      .passThroughOptions()
      .option("-e, --env <key=value>", "environment variable; repeatable", collectPairs)
      .option("-w, --workdir <path>", "working directory")
      .option("-u, --user <name>", "user to run as")
      .option("--timeout <duration>", "deadline, such as 30s", positiveDurationText);
  run(
    program
      .command("exec <id> <command...>")
      .description(
        "run a command; one argument is a shell command line, several are a program and its arguments",
      ),
  )
    .option("-i, --interactive", "pass standard input on")
    .option("-t, --tty", "give the command a terminal")
    .option("-d, --detach", "leave it running and print its exec id")
    .option("--cpu-time <duration>", "processor time it may use", positiveDurationText)
    .option("--output-bytes <count>", "bytes it may write", parseCount)
    .option("--memory <mb>", "memory it may use; needs the capability exec_limits", parseCount)
    .option("--pids <count>", "processes it may have at a time; needs the capability exec_limits", parseCount)
    .option("--json", "print the whole result as JSON when it has ended")
    .action(async (id, command, flags) => (await import("./commands/exec.ts")).exec(id, command, flags));
  run(
    program
      .command("shell <id> [command...]")
      .description("open an interactive shell; Enter ~ . leaves one that no longer answers"),
  ).action(async (id, command, flags) => (await import("./commands/shell.ts")).shell(id, command, flags));
}

function addFileAndEventCommands(program: Command): void {
  client(
    program
      .command("cp <source> <target>")
      .description(
        "copy files to or from a sandbox: cp ./a sb-…:/b, cp sb-…:/b ./a; - is standard input or output",
      ),
  )
    .option("-r, --recursive", "copy directories")
    .option("-q, --quiet", "say nothing")
    .action(async (source, target, flags) => (await import("./commands/cp.ts")).cp(source, target, flags));
  client(
    program
      .command("open <id> <port>")
      .description("print the address of a port, and open it in the browser"),
  )
    .option("--json", "print JSON")
    .option("--ttl <duration>", "how long a link is good, such as 10m", positiveDurationText)
    .option("--no-browser", "only print it")
    .action(async (id, port, flags) => (await import("./commands/open.ts")).open(id, port, flags));
  client(
    program
      .command("forward <id> <ports...>")
      .description("let a port of this machine lead to one of a sandbox: LOCAL:PORT, or PORT for both"),
  )
    .option("--address <address>", "address to listen on; default: 127.0.0.1")
    .action(async (id, ports, flags) => (await import("./commands/forward.ts")).forward(id, ports, flags));
  client(program.command("events").description("follow the event stream"))
    .option("--json", "print JSON")
    .option("--type <types>", "only these types, separated by commas")
    .option("--sandbox <id>", "only this sandbox's")
    .option("--owner <id>", "only this owner's")
    .option("--since <event id>", "begin after this event")
    .action(async (flags) => (await import("./commands/events.ts")).events(flags));
}

function addOperatorCommands(program: Command): void {
  client(program.command("stats <id>").description("tell what a sandbox uses now"))
    .option("--json", "print JSON")
    .action(async (id, flags) => (await import("./commands/stats.ts")).stats(id, flags));
  client(program.command("top").description("sandboxes and what they use, live"))
    .option("--json", "print JSON, once")
    .option("--owner <id>", "only this owner's; else of --user-id, else everybody's")
    .option("--interval <duration>", "between looks; default: 2s")
    .addOption(
      new Option("--sort <figure>", "what most of comes first; default: cpu").choices([
        "cpu",
        "memory",
        "disk",
        "commands",
      ] as const satisfies readonly SortKey[]),
    )
    .option("-n, --limit <count>", "the newest so many; default: 100", parseCount)
    .option("--once", "one table, and done; so it is without a terminal")
    .action(async (flags) => (await import("./commands/top.ts")).top(flags));
  client(
    program
      .command("drain [worker]")
      .description("take no new sandboxes; those that are there live on; takes an admin key"),
  )
    .option("--end", "take new ones again")
    .option("--wait", "wait until none is left")
    .option("--json", "print JSON")
    .action(async (worker, flags) => (await import("./commands/drain.ts")).drain(worker, flags));
}

function addPoolCommands(program: Command): void {
  const pool = program.command("pool").description("VMs that users share");
  client(pool.command("status").description("tell how many VMs and users the pool holds"))
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/pool.ts")).poolStatus(flags));
}

function addSnapshotCommands(program: Command): void {
  const snapshot = program.command("snapshot").description("images that start from memory");
  client(snapshot.command("ls").alias("list").description("list snapshots, newest first"))
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/snapshot.ts")).snapshotList(flags));
}

function addQuotaCommands(program: Command): void {
  const quota = program.command("quota").description("what owners may have");
  client(quota.command("ls").alias("list").description("list quotas, by owner"))
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/quota.ts")).quotaList(flags));
  client(quota.command("show <owner>").description("tell what an owner has and may have"))
    .option("--json", "print JSON")
    .action(async (owner, flags) => (await import("./commands/quota.ts")).quotaShow(owner, flags));
  client(
    quota.command("set <owner>").description("give an owner a quota; what is left out inherits the default"),
  )
    .option("--max-sandboxes <count>", "sandboxes at once", parseCount)
    .option("--max-ttl <duration>", "longest time to live, whole seconds", durationText)
    .option("--max-exec-timeout <duration>", "longest deadline of a command, whole seconds", durationText)
    .option("--max-memory <mb>", "memory of all its sandboxes, MB", parseCount)
    .option("--max-vcpus <count>", "virtual CPUs of all its sandboxes", parseCount)
    .option("--json", "print JSON")
    .action(async (owner, flags) => (await import("./commands/quota.ts")).quotaSet(owner, flags));
  client(
    quota.command("rm <owner>").alias("remove").description("let an owner have the defaults again"),
  ).action(async (owner, flags) => (await import("./commands/quota.ts")).quotaRemove(owner, flags));
}

function addKeyCommands(program: Command): void {
  const key = program.command("key").description("keys of the service; takes an admin key");
  client(key.command("ls").alias("list").description("list keys, by name"))
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/key.ts")).keyList(flags));
  client(key.command("new <name>").description("make a key and print it, this once"))
    .option("--owner <id>", "confine it to this owner's things")
    .option(
      "--scope <names>",
      "what it may be used for, separated by commas or repeated; default: read,write",
      collectScopes,
    )
    .option(
      "--ttl <duration>",
      "how long it is accepted, such as 720h; default: until it is revoked",
      positiveDurationText,
    )
    .option("--json", "print JSON")
    .action(async (name, flags) => (await import("./commands/key.ts")).keyNew(name, flags));
  client(key.command("revoke <name>").alias("rm").description("revoke a key; what it has open ends")).action(
    async (name, flags) => (await import("./commands/key.ts")).keyRevoke(name, flags),
  );
}

function addAuditCommand(program: Command): void {
  client(program.command("audit").description("tell who administered what, newest first; takes an admin key"))
    .option("-n, --limit <count>", "at most this many, up to 500", parseCount)
    .option("--actor <name>", "only this key's; anonymous: those without a known one")
    .option("--method <method>", "only this method")
    .option("--status <status>", "only answers of this status", parseCount)
    .option("--path <text>", "only paths with this in them")
    .option("--since <time>", "at this time or later, such as 2026-11-21T17:44:03Z")
    .option("--until <time>", "at this time or before")
    .option("--cursor <cursor>", "older than the page that named this")
    .option("--csv", "print CSV")
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/audit.ts")).audit(flags));
}

function addTemplateCommands(program: Command): void {
  const template = program.command("template").description("named ways to spawn");
  client(template.command("ls").alias("list").description("list templates, by name"))
    .option("--json", "print JSON")
    .action(async (flags) => (await import("./commands/template.ts")).templateList(flags));
  client(template.command("show <name>").description("print a template as JSON"))
    .option("--json", "print JSON, which it does anyway")
    .action(async (name, flags) => (await import("./commands/template.ts")).templateShow(name, flags));
  client(template.command("save <name>").description("make a template, or replace the one of that name"))
    .requiredOption("-i, --image <name>", "image")
    .option("--description <text>", "what it is for")
    .option("-p, --provider <name>", "provider")
    .option("-m, --memory <mb>", "memory, MB", parseCount)
    .option("--vcpus <count>", "virtual CPUs", parseCount)
    .option("--ttl <duration>", "time to live, such as 30m", positiveDurationText)
    .option("--metadata <key=value>", "label; repeatable", collectPairs)
    .option("-e, --env <key=value>", "environment variable of every command; repeatable", collectPairs)
    .option("-u, --user <name>", "user commands run as")
    .option("-w, --workdir <path>", "working directory of commands")
    .addOption(new Option("--network <mode>", "network").choices(networks))
    .option("--json", "print JSON")
    .action(async (name, flags) => (await import("./commands/template.ts")).templateSave(name, flags));
  client(template.command("rm <name>").alias("remove").description("remove a template")).action(
    async (name, flags) => (await import("./commands/template.ts")).templateRemove(name, flags),
  );
}

function addCompletionCommand(program: Command): void {
  program
    .command("completion")
    .description("print what makes a shell complete this command; docs/cli.md says where it belongs")
    .addArgument(
      new Argument("<shell>", "shell that is to complete it").choices([
        "bash",
        "zsh",
        "fish",
      ] as const satisfies readonly Shell[]),
    )
    .action(async (shell) => (await import("./commands/completion.ts")).completion(shell, program));
}

/** What every command that talks to a service takes. */
function client<Args extends unknown[], Flags extends OptionValues>(command: Command<Args, Flags>) {
  return command
    .option("--url <url>", "the service; else $ALCOVE_URL, else http://127.0.0.1:7423")
    .option("--api-key <key>", "its key; else $ALCOVE_API_KEY")
    .option("--user-id <id>", "sent as X-User-ID");
}

function parseCount(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError("expected a whole number.");
  return Number(text);
}

/** @returns the text, which the service reads: in an option the empty one is "not given" there, so it passes. */
function durationText(text: string): string {
  if (text !== "" && parseDuration(text) === undefined)
    throw new InvalidArgumentError(`expected a duration such as 30s, 5m or 1h30m${durationMeant(text)}.`);
  return text;
}

/** Of what lasts: none is no time, where a quota means its default by it. */
function positiveDurationText(text: string): string {
  if (parseDuration(durationText(text)) === 0) throw new InvalidArgumentError("it must be longer than 0s.");
  return text;
}

function collectScopes(text: string, before: KeyScope[] = []): KeyScope[] {
  const named = text.split(",").map((name) => scopes.find((scope) => scope === name.trim()));
  if (named.includes(undefined)) throw new InvalidArgumentError(`expected some of ${scopes.join(",")}.`);
  return [...new Set([...before, ...named.filter((scope) => scope !== undefined)])];
}

function collectPairs(text: string, before: Record<string, string> = {}): Record<string, string> {
  const equals = text.indexOf("=");
  if (equals < 1) throw new InvalidArgumentError("expected KEY=VALUE.");
  return { ...before, [text.slice(0, equals)]: text.slice(equals + 1) };
}
