import { keyNamePattern, keyScopes } from "@alcove/wire";
import { type TSchema, Type } from "typebox";
import { providerNames } from "./providers.ts";

declare const kind: unique symbol;
/** A duration text; the loader turns it into milliseconds. */
export type Duration = string & { readonly [kind]: "duration" };
/** An integer or a text such as 10MiB; the loader turns it into bytes. */
export type Bytes = (string | number) & { readonly [kind]: "bytes" };
/** A text that may also come from the file its `_file` key names. */
export type Secret = string & { readonly [kind]: "secret" };

const duration = (fallback: string, description: string) =>
  Type.Unsafe<Duration>(Type.String({ default: fallback, description, "x-kind": "duration" }));
const bytes = (fallback: number | string, description: string) =>
  Type.Unsafe<Bytes>(
    Type.Union([Type.Integer({ minimum: 0 }), Type.String()], {
      default: fallback,
      description,
      "x-kind": "bytes",
    }),
  );
const text = (fallback: string, description: string) => Type.String({ default: fallback, description });
const secret = (description: string) =>
  Type.Unsafe<Secret>(Type.String({ default: "", description, "x-kind": "secret" }));
const flag = (fallback: boolean, description: string) => Type.Boolean({ default: fallback, description });
const count = (fallback: number, description: string, minimum = 0) =>
  Type.Integer({ default: fallback, minimum, description });
const texts = (fallback: string[], description: string, pattern?: string) =>
  Type.Array(Type.String(pattern === undefined ? {} : { pattern }), { default: fallback, description });
const octet = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])";
/** An IPv4 address, or a network of them. */
const networkPattern = `^${octet}(\\.${octet}){3}(/(3[0-2]|[12]?[0-9]))?$`;
/** Of providers.firecracker.network. */
const networkEntryPattern = `^[A-Za-z0-9_.-]{1,15} +${octet}(\\.${octet}){3}/([12]?[0-9]|30) +${octet}(\\.${octet}){3}( +${octet}(\\.${octet}){3})?$`;
const choice = <const V extends string>(fallback: NoInfer<V>, values: readonly V[], description: string) =>
  Type.Enum([...values], { default: fallback, description });
const section = <P extends Record<string, TSchema>>(properties: P, description: string) =>
  Type.Object(properties, { additionalProperties: false, description, default: {} });

/** Of every provider that has network mode `outbound`. */
const outboundKeys = {
  network_allow: texts(
    [],
    "IPv4 networks that sandboxes of outbound reach although they are closed: 10.1.2.0/24.",
    networkPattern,
  ),
  network_connections: count(512, "Connections that a sandbox of outbound may have.", 1),
  network_mbit: count(200, "Megabits a second of a sandbox of outbound, each way; 0: no limit."),
};

const entries = <P extends Record<string, TSchema>>(properties: P, description: string) =>
  Type.Array(Type.Object(properties, { additionalProperties: false }), { default: [], description });

/** Unset, true or false. */
const enabled = (description: string) => Type.Optional(Type.Boolean({ description }));

/** Every key of the configuration, its default and what it means. The reference page is generated from this. */
export const ConfigSchema = section(
  {
    data_dir: text(
      "./.alcove",
      "Database, sockets, images and runtimes live here; relative to the working directory.",
    ),
    server: section(
      {
        host: text("127.0.0.1", "Address to listen on. Anything but loopback needs auth, or allow_insecure."),
        port: Type.Integer({
          default: 7423,
          minimum: 0,
          maximum: 65_535,
          description: "Port to listen on; 0: any free one.",
        }),
        public_url: text(
          "",
          "URL clients reach the service at, when a proxy stands in front; its host name is accepted in Host. Any but one of this machine needs auth, or allow_insecure.",
        ),
        preview_domain: text("localhost", "Domain of preview hosts: <port>-<sandbox_id>.<preview_domain>."),
        trusted_proxies: texts([], "Addresses or CIDR ranges whose X-Forwarded-For is believed."),
        cors_allowed_origins: texts(
          ["*"],
          "Origins browsers may call from. * is every origin where auth is on; where it is off, only the service's own and those listed by name may.",
        ),
        max_connections: count(
          10_000,
          "Connections held at once; beyond it new ones are closed. Each takes a descriptor, as sandboxes do. 0: no limit.",
        ),
        shutdown_grace: duration(
          "30s",
          "How long calls that cannot be repeated, such as uploads, may take at shutdown; what is answered then has five seconds more.",
        ),
        deadman_grace: duration(
          "5m",
          "How long after its expiry a sandbox ends itself when the service is gone.",
        ),
        destroy_on_exit: flag(
          false,
          "Destroy every sandbox at shutdown instead of keeping it for the next start.",
        ),
        allow_insecure: flag(
          false,
          "Start without auth where others can reach the service: by host, public_url or trusted_proxies.",
        ),
      },
      "The HTTP server.",
    ),
    preview: section(
      {
        access: Type.Optional(
          Type.Enum(["public", "signed"], {
            description:
              "public: whoever knows the address of a preview; signed: who has a link to it. Unset: signed where auth is on, else public.",
          }),
        ),
        link_ttl: duration("1h", "How long a link to a preview is good, and what was opened with it."),
        max_link_ttl: duration("24h", "Longest that can be asked for."),
        response_timeout: duration(
          "60s",
          "How long a program in a sandbox may take to begin its answer, counted from the last byte it was sent; 0s: no limit.",
        ),
        max_connections: count(
          4_096,
          "Connections to ports of sandboxes at once; sandboxes of one owner have a quarter at most, those without an owner three quarters together.",
          1,
        ),
        max_connections_per_sandbox: Type.Integer({
          default: 256,
          minimum: 1,
          maximum: 256,
          description:
            "Connections to ports of one sandbox at once; each takes a thread of its agent, which counts among the sandbox's processes.",
        }),
      },
      "Ports of sandboxes, reached through the service.",
    ),
    database: section(
      {
        driver: choice("sqlite", ["sqlite"], "Where state is kept."),
        path: text("", "SQLite file; empty: <data_dir>/alcove.db."),
      },
      "State.",
    ),
    store: section(
      {
        retention: duration("24h", "How long destroyed sandboxes are remembered."),
        max_destroyed: count(
          100_000,
          "How many destroyed sandboxes are remembered, whatever their age. Beyond it the oldest go, and the idempotency keys that made them.",
          1,
        ),
        events_retention: count(
          100_000,
          "How many events are kept for replay; beyond that the oldest of the owner who has most go.",
          100,
        ),
        events_max_age: duration("720h", "How long events are kept for replay."),
        max_audit: count(
          100_000,
          "How many records of the audit history are kept, whatever their age; of callers without a known key a tenth of it.",
          1,
        ),
      },
      "How long things are remembered.",
    ),
    defaults: section(
      {
        ttl: duration("30m", "Time to live of a sandbox that asks for none."),
        memory_mb: count(512, "Memory of a sandbox that asks for none, MB.", 16),
        vcpus: count(1, "Virtual CPUs of a sandbox that asks for none.", 1),
        max_ttl: duration("24h", "Longest time to live from now; 0s: no limit."),
        default_exec_timeout: duration("0s", "Deadline of a command that asks for none; 0s: the maximum."),
        max_exec_timeout: duration("1h", "Longest deadline of a command."),
        max_sandboxes: count(100, "Sandboxes at once; 0: no limit."),
        max_sandboxes_per_owner: count(0, "Sandboxes of one owner at once; 0: no limit."),
        max_memory_mb: count(
          0,
          "Memory of all sandboxes together, MB; 0: what the machine has, times memory_overcommit. Set it where the engine runs on another machine.",
        ),
        max_vcpus: count(
          0,
          "Virtual CPUs of all sandboxes together; 0: what the machine has, times vcpu_overcommit.",
        ),
        memory_overcommit: count(
          8,
          "How many times the machine's memory sandboxes may be promised: most use little of theirs. 0: no limit.",
        ),
        vcpu_overcommit: count(
          64,
          "How many times the machine's processors sandboxes may be promised. 0: no limit.",
        ),
        spawn_overflow: choice(
          "reject",
          ["reject", "queue"],
          "What happens to a spawn when there is no capacity.",
        ),
        spawn_queue_timeout: duration("30s", "How long a queued spawn waits."),
        max_spawn_queue: count(100, "Spawns that may wait at once."),
      },
      "Defaults and limits of sandboxes and commands.",
    ),
    pool: section(
      {
        enabled: flag(
          false,
          "Every sandbox is its user's (X-User-ID, which a spawn then needs) part of a VM that users share.",
        ),
        max_vms: count(10, "VMs at once.", 1),
        max_users_per_vm: count(5, "Users of one VM; each has an equal part of its memory.", 1),
        image: text("", "Image of a spawn that names none; empty: its provider's default."),
        memory_mb: count(2_560, "Memory of a VM, MB.", 16),
        vcpus: count(2, "Virtual CPUs of a VM, which its users share alike.", 1),
        overflow: choice(
          "reject",
          ["reject", "queue"],
          "What happens to a spawn of a new user when every VM is full: 503, or it waits as defaults.spawn_queue_timeout says.",
        ),
      },
      "Pool mode.",
    ),
    exec: section(
      {
        max_output: bytes(
          "10MiB",
          "Bytes of each stream a buffered exec returns; the rest is dropped and truncated is set.",
        ),
        ring_bytes: bytes("1MiB", "Output kept per command for replay."),
        disconnect_grace: duration(
          "30s",
          "How long a command lives on after its last reader left; 0s: not at all. Unless detached, it waits meanwhile once it has written half of exec.ring_bytes.",
        ),
      },
      "Commands.",
    ),
    files: section({ max_upload: bytes(0, "Largest raw upload; 0: no limit.") }, "Files."),
    auth: section(
      {
        enabled: enabled("Unset: on when a key is set."),
        api_key: secret("Key clients send as X-API-Key or Bearer."),
        api_key_file: text("", "File holding auth.api_key."),
        admin_api_key: secret("Key that works everywhere."),
        admin_api_key_file: text("", "File holding auth.admin_api_key."),
        admin_fallback_enabled: flag(
          true,
          "Without auth.admin_api_key, auth.api_key administers too; false: nobody does.",
        ),
        keys: entries(
          {
            name: Type.String({ pattern: keyNamePattern }),
            hash: Type.Optional(Type.String({ pattern: "^[0-9a-fA-F]{64}$" })),
            key_file: Type.Optional(Type.String({ minLength: 1 })),
            owner: Type.Optional(Type.String()),
            scopes: Type.Optional(Type.Array(Type.Enum([...keyScopes]), { minItems: 1 })),
            expires: Type.Optional(Type.String()),
          },
          "More keys, each {name, hash (its SHA-256, hexadecimal) or key_file, owner (whom it is bound to), scopes (of read, write, admin; default read, write), expires (a time)}.",
        ),
        admin_audit_retention: duration("2160h", "How long records of the audit history are kept."),
      },
      "Keys.",
    ),
    rate_limit: section(
      {
        enabled: flag(false, "Bound how often clients may ask."),
        requests_per_minute: count(120, "Requests that each may send a minute in the long run.", 1),
        burst: count(60, "Requests that each may send at once.", 1),
        key_by: choice(
          "owner",
          ["owner", "api_key", "ip"],
          "Who is counted: the owner (X-User-ID), else the key, else the address; the key, else the address; the address.",
        ),
        bucket_ttl: duration("15m", "How long what was counted of somebody who no longer asks is kept."),
        cleanup_interval: duration("1m", "How often what is no longer kept is cleared away."),
      },
      "Rate limits.",
    ),
    providers: section(
      {
        default: choice(
          "auto",
          ["auto", ...providerNames],
          "Provider of a spawn that names none; auto: the first that works, which stays while its sandboxes are there.",
        ),
        firecracker: section(
          {
            enabled: flag(
              false,
              "It needs a kernel for its machines and must be asked for; auto then tries it first.",
            ),
            default_image: text("alpine:latest", "Image of a spawn that names none."),
            firecracker_path: text("firecracker", "The Firecracker program."),
            jailer_path: text(
              "",
              "The jailer of the same release, which confines each machine's process to a folder and a user of its own; empty: it is not used. The service must be root.",
            ),
            jail_uid_base: count(
              1_878_982_656,
              "Group of all jails; the users of jails are the 65,535 ids that follow it.",
              1_000,
            ),
            kernel_path: text("", "The kernel of the machines, an uncompressed vmlinux; it must be set."),
            initrd_path: text("", "The initrd of that kernel; empty: it needs none."),
            data_dir: text(
              "",
              "Root file systems and disks of the machines; empty: firecracker below data_dir.",
            ),
            network: texts(
              [],
              "Networks that were made beforehand, each TAP ADDRESS/LENGTH GATEWAY [DNS], lent to one machine at a time; empty: machines have none.",
              networkEntryPattern,
            ),
            network_mbit: count(200, "Megabits a second of a machine's network, each way; 0: no limit."),
            disk_rate_mb: count(
              0,
              "What a machine may read and write a second of each of its two drives, MB; 0: no limit.",
            ),
            snapshots: flag(
              false,
              "Restore machines without a network from memory: the first spawn of an image and size boots, and one is made in the background for the next.",
            ),
            pids_limit: count(512, "Processes and threads of a sandbox.", 16),
            disk_mb: count(1_024, "Size of a machine's own disk, which takes what it writes, MB.", 16),
            min_free_mb: count(
              1_024,
              "Free space on the disk of the machines below which spawns are refused and who writes most is stopped, MB; 0: never.",
            ),
          },
          "MicroVMs of Firecracker, each with a kernel of its own. docs/firecracker-provider.md.",
        ),
        native: section(
          {
            enabled: enabled("Unset: when it works."),
            default_image: text("host", "Image of a spawn that names none; host: the machine's own /usr."),
            network_mode: choice(
              "none",
              ["none", "outbound", "host"],
              "none: loopback only; outbound: the internet through slirp4netns, without the host's, private and metadata addresses; host: the host's network.",
            ),
            ...outboundKeys,
            uid_base: count(
              1_879_048_192,
              "First host uid of the ranges given to sandboxes by a rooted service.",
              100_000,
            ),
            pids_limit: count(512, "Processes and threads of a sandbox.", 16),
            disk_mb: count(10_240, "Size of a sandbox's writable layer, MB; 0: no limit of its own."),
            min_free_mb: count(
              1_024,
              "Free space under data_dir below which spawns are refused and who writes most is stopped, MB; 0: never.",
            ),
            max_uncounted_percent: count(
              10,
              "Share of the machine's memory that may be in use and counted for nobody, beyond what is usual, before the sandbox that can hold most of it, in sockets or in what the kernel keeps for it, is stopped; 0: never.",
            ),
            added_caps: texts([], "Capabilities commands get, such as CAP_NET_RAW."),
            prepared: count(
              4,
              "Sandboxes a rooted service makes ahead, up to where they become somebody's, for each of the three kinds of spawn that come most (image, network mode, memory and processors); 0: none.",
            ),
          },
          "Isolation by the kernel alone.",
        ),
        docker: section(
          {
            enabled: enabled("Unset: when it works."),
            default_image: text("alpine:latest", "Image of a spawn that names none."),
            socket: text(
              "",
              "Engine: unix:///path, tcp://host:port; empty: $DOCKER_HOST, else unix:///var/run/docker.sock.",
            ),
            tls_dir: text(
              "",
              "Folder with ca.pem, cert.pem and key.pem for an engine at tcp:// that asks for TLS; empty: no TLS.",
            ),
            runtime: text("", "Runtime of the engine: runc, runsc, kata; empty: the engine's default."),
            network_mode: text(
              "none",
              "Network of a sandbox: none; outbound, as on native; host, bridge or a network's name, which close no address.",
            ),
            ...outboundKeys,
            seccomp_profile: text(
              "",
              "File of a seccomp profile, or unconfined; empty: the engine's default and the agent's own filter.",
            ),
            read_only_rootfs: flag(
              false,
              "Mount the image read-only; /tmp, /run and /workspace stay writable.",
            ),
            pids_limit: count(512, "Processes and threads of a sandbox.", 16),
            disk_mb: count(
              10_240,
              "What a sandbox may write, MB: bounded by the engine where its storage driver can, else who is seen above it is stopped; 0: anything.",
            ),
            min_free_mb: count(
              1_024,
              "Free space on the engine's disk, where that is this machine's, below which spawns are refused and who writes most is stopped, MB; 0: never.",
            ),
            user: text("", "User commands run as by default; empty: the image's."),
            dropped_caps: texts(["ALL"], "Capabilities taken from the container."),
            added_caps: texts([], "Capabilities commands get beyond none."),
            tmpfs: texts([], "Paths mounted as tmpfs, with options: /tmp:size=64m."),
            agent_transport: choice(
              "auto",
              ["auto", "socket", "stdio"],
              "How the agent is reached: its socket, or exec's stdio where sockets cannot cross.",
            ),
            prepared: count(
              0,
              "Containers a rooted service on the engine's machine makes and starts ahead, nobody's until then, for each of the three kinds of spawn that come most (image, network none or outbound, memory and processors); 0: none.",
            ),
          },
          "Containers of a Docker Engine.",
        ),
        e2b: section(
          {
            enabled: flag(
              false,
              "Sandboxes there run on another's machines and cost money; it must be asked for.",
            ),
            default_image: text("base", "Template of a spawn that names no image."),
            api_key: secret("Key of the service."),
            api_key_file: text("", "File holding providers.e2b.api_key."),
            domain: text("e2b.app", "Domain of the service; its addresses follow from it."),
            api_url: text("", "Address of the control API; empty: https://api.<domain>."),
            sandbox_url: text(
              "",
              "One address for all sandboxes, where the service has one; empty: that of the domain.",
            ),
            network_mode: choice("none", ["none", "outbound"], "Whether sandboxes reach the internet."),
            timeout: duration(
              "30s",
              "Longest time for one call, and for a part of an upload to be taken; commands and streams have their own deadline.",
            ),
            max_lifetime: duration(
              "24h",
              "Longest time to live the service is asked for at once, and what a sandbox without expiry gets; it is renewed every minute. Plans have maxima.",
            ),
          },
          "Sandboxes of the hosted service e2b, or of one that speaks its interface. docs/e2b-provider.md.",
        ),
        custom: section(
          {
            enabled: flag(false, "What isolates sandboxes there is the backend's; it must be asked for."),
            default_image: text(
              "default",
              "Image of a spawn that names none; what it means is the backend's.",
            ),
            url: text("", "Address of the backend; the calls of the contract are below it."),
            api_key: secret("Key the backend asks for; empty: none is sent."),
            api_key_file: text("", "File holding providers.custom.api_key."),
            auth_header: choice(
              "bearer",
              ["bearer", "x-api-key"],
              "How the key is sent: in Authorization, or in X-API-Key.",
            ),
            network_mode: choice("none", ["none", "outbound"], "Whether sandboxes reach a network."),
            timeout: duration(
              "30s",
              "Longest time for one call, and for a part of an upload to be taken; commands and streams have their own deadline.",
            ),
          },
          "Sandboxes of a backend of your own that speaks the contract of docs/custom-provider.md.",
        ),
        proot: section(
          {
            enabled: flag(false, "proot isolates next to nothing; it must be asked for."),
            default_image: text("host", "Image of a spawn that names none."),
            proot_binary: text("proot", "The proot program."),
          },
          "Path translation for hosts without namespaces.",
        ),
        mock: section(
          {
            enabled: flag(false, "A simulated shell for tests and demos."),
            default_image: text("mock", "Image of a spawn that names none."),
            max_workers: count(4, "Worker threads shells run in.", 1),
          },
          "A simulation without host access.",
        ),
      },
      "Where sandboxes run.",
    ),
    images: section(
      {
        pull_policy: choice(
          "missing",
          ["missing", "never"],
          "missing: get an image that is not there; never: refuse.",
        ),
        pull_timeout: duration(
          "10m",
          "How long one pull may take, and how long it may wait for its turn; then the spawns that want the image are 503.",
        ),
        max_pulls: count(
          3,
          "Images pulled at once, by the service itself and by the Docker Engine each; owners take turns, and one alone does not get the last place.",
          1,
        ),
        max_unpacked: bytes("16GiB", "Bytes an image may unpack to."),
        max_entries: count(1_000_000, "Files, directories and links an image may unpack to.", 1),
        max_stored: bytes(
          "0",
          "Bytes all stored images may take together; 0: as many as the disk has room for. Beyond it an import or pull is refused.",
        ),
        allowed_registries: texts(
          ["*"],
          "Registries images are pulled from: docker.io, registry.example:5000; *: any, but for spawns those on loopback, private and link-local addresses, which have to be named. Credentials of the service's user go only to those named here.",
        ),
        aliases: Type.Record(Type.String(), Type.String(), {
          default: {},
          description:
            'Requested image name to stored name; "*": host makes every name the host\'s own root.',
        }),
      },
      "Images.",
    ),
    logging: section(
      {
        level: choice(
          "info",
          ["trace", "debug", "info", "warn", "error", "fatal", "silent"],
          "Least important level written.",
        ),
        format: Type.Optional(
          Type.Enum(["json", "pretty"], { description: "Unset: pretty on a terminal, else json." }),
        ),
      },
      "Logs, on standard error.",
    ),
    telemetry: section(
      {
        otlp_endpoint: text(
          "",
          "URL of an OpenTelemetry collector that takes OTLP over HTTP: http://127.0.0.1:4318; empty: nothing is traced.",
        ),
        otlp_headers: secret("Headers for the collector, such as its key: one `Name: value` on each line."),
        otlp_headers_file: text("", "File holding telemetry.otlp_headers."),
        sample_ratio: Type.Number({
          default: 1,
          minimum: 0,
          maximum: 1,
          description: "Share of the requests that are traced, of those whose caller has not decided it.",
        }),
        service_name: text("alcove", "What this service is called in traces."),
      },
      "Traces. docs/operations/traces.md.",
    ),
  },
  "Alcove's configuration.",
);
