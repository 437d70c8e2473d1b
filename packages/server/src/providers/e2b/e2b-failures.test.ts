import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { inspect } from "node:util";
import { gzipSync } from "node:zlib";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import type { Misbehaviour, SeenRequest } from "../../../test/support/e2b/e2b-server.ts";
import { type Hosted, hosted, testTemplate } from "../../../test/support/e2b/hosted.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { longestTurnMs, TurnWatch } from "../../../test/support/turn-watch.ts";
import { randomIds } from "../../platform/random-ids.ts";
import {
  chunks,
  collect,
  eventually,
  finish,
  readUntil,
  run,
  shell,
  soon,
} from "../../ports/contract/provider/harness.ts";
import {
  DomainError,
  RuntimeGone,
  type RuntimeId,
  type RuntimeSpec,
  type SandboxOperations,
} from "../../ports/index.ts";
import type { E2bProvider } from "./index.ts";

const said = "<html>the service's own words</html>";
const patienceMs = 400;
const mebibyte = 1_048_576;
/** As a caller that has its answer and stays. */
const unbounded = { signal: new AbortController().signal, recursive: false };

await describeWith(
  ["linux", "root", "agent", "launcher", "native", "busybox"],
  "a service that misbehaves",
  () => {
    let service: Hosted;
    /** With little patience. */
    let provider: E2bProvider;
    let runtimeId: RuntimeId;
    let operations: SandboxOperations;

    const specOf = (change: Partial<RuntimeSpec> = {}): RuntimeSpec => ({
      runtimeId: randomIds.runtimeId(),
      sandboxId: randomIds.sandboxId(),
      image: testTemplate,
      memoryMb: 256,
      vcpus: 1,
      env: {},
      expiresInMs: 600_000,
      metadata: {},
      ...change,
    });
    const marked = () => service.server.sandboxes.map(({ metadata }) => metadata["alcove.runtime"]);
    const whenAsked = (area: SeenRequest["area"], path: RegExp, wrong: Misbehaviour) => {
      service.server.misbehave = (request) =>
        request.area === area && path.test(`${request.method} ${request.path}`) ? wrong : undefined;
    };
    const failureOf = async (call: Promise<unknown>): Promise<DomainError> => {
      const error = await call.then(
        () => new Error("it succeeded"),
        (failure: unknown) => failure,
      );
      expect(error).toBeInstanceOf(DomainError);
      return error as DomainError;
    };

    beforeAll(async () => {
      service = await hosted();
      provider = service.open({ timeoutMs: patienceMs });
      const spec = specOf();
      const patient = service.open();
      await patient.spawn(spec, soon());
      await patient[Symbol.asyncDispose]();
      await provider.adopt(spec.runtimeId, soon());
      runtimeId = spec.runtimeId;
      operations = provider.sandbox(runtimeId);
    });
    afterEach(() => {
      service.server.misbehave = () => undefined;
    });
    afterAll(async () => {
      await provider.destroy(runtimeId, soon());
      await provider[Symbol.asyncDispose]();
      await service.close();
    });

    async function* someBytes() {
      yield Buffer.from("some bytes");
    }
    /** Every way to ask, and a part of the address that it asks at. */
    const calls: Record<string, () => Promise<unknown>> = {
      inventory: () => provider.inventory(soon()),
      spawn: () => provider.spawn(specOf(), soon()),
      setExpiry: () => operations.setExpiry(600_000, soon()),
      "exec start": () => operations.execs.start(shell("true"), soon()),
      "file stat": () => operations.files.stat("/etc/passwd", soon()),
      "file list": () => operations.files.list("/etc", { ...soon(), depth: 1 }),
      "file read": async () => collect((await operations.files.read("/etc/passwd", soon())).body),
      "file write": () => operations.files.write("/tmp/file", someBytes(), soon()),
      "file move": () => operations.files.move("/etc/hostname", "/tmp/name", soon()),
      "file remove": () => operations.files.remove("/etc/hostname", { ...soon(), recursive: false }),
      "file chmod": () => operations.files.chmod("/etc/hostname", 0o600, soon()),
      "file glob": () => operations.files.glob("/etc/*", soon()),
      "file watch": () => operations.files.watch("/etc", { ...soon(), recursive: false }),
      stats: () => operations.stats(soon()),
    };
    const isLookAtSandbox = /^GET \/sandboxes\//;
    const wrongs = (wrong: Misbehaviour) => {
      // What is asked to find out whether the sandbox is there is answered.
      service.server.misbehave = (request) =>
        isLookAtSandbox.test(`${request.method} ${request.path}`) ? undefined : wrong;
    };

    it.each(Object.keys(calls))("%s: a service that hangs is Unavailable after its time", async (name) => {
      wrongs({ do: "hang" });
      const startedAt = performance.now();
      // An upload has the deadline of its caller.
      if (name === "file write") whenAsked("envd", /filesystem/, { do: "hang" });
      const error = await failureOf(calls[name]?.() ?? Promise.resolve());
      expect(error.code).toBe("unavailable");
      expect(error.retryAfterS).toBeGreaterThan(0);
      expect(performance.now() - startedAt).toBeLessThan(patienceMs * 4);
    });

    it("an upload that the service has whole and does not answer is Unavailable after its time", async () => {
      whenAsked("envd", /^POST \/files(\?|$)/, { do: "hang" });
      const startedAt = performance.now();
      const error = await failureOf(operations.files.write("/tmp/file", someBytes(), soon()));
      expect(error.code).toBe("unavailable");
      expect(error.retryAfterS).toBeGreaterThan(0);
      expect(performance.now() - startedAt).toBeLessThan(patienceMs * 4);
    });

    it.each(Object.keys(calls))("%s: a caller that gives up is let go with its own reason", async (name) => {
      wrongs({ do: "hang" });
      const reason = new Error("gave up");
      const stopping = new AbortController();
      const stop = { signal: stopping.signal };
      setTimeout(() => stopping.abort(reason), 50);
      const asked: Record<string, () => Promise<unknown>> = {
        inventory: () => provider.inventory(stop),
        spawn: () => provider.spawn(specOf(), stop),
        setExpiry: () => operations.setExpiry(600_000, stop),
        "exec start": () => operations.execs.start(shell("true"), stop),
        "file stat": () => operations.files.stat("/etc/passwd", stop),
        "file list": () => operations.files.list("/etc", { ...stop, depth: 1 }),
        "file read": () => operations.files.read("/etc/passwd", stop),
        "file write": () => operations.files.write("/tmp/file", someBytes(), stop),
        "file move": () => operations.files.move("/etc/hostname", "/tmp/name", stop),
        "file remove": () => operations.files.remove("/etc/x", { ...stop, recursive: false }),
        "file chmod": () => operations.files.chmod("/etc/hostname", 0o600, stop),
        "file glob": () => operations.files.glob("/etc/*", stop),
        "file watch": () => operations.files.watch("/etc", { ...stop, recursive: false }),
        stats: () => operations.stats(stop),
      };
      await expect(asked[name]?.()).rejects.toBe(reason);
    });

    it.each(Object.keys(calls))("%s: 429 is Unavailable with the service's own Retry-After", async (name) => {
      wrongs({ do: "answer", status: 429, headers: { "retry-after": "17" }, body: said });
      const error = await failureOf(calls[name]?.() ?? Promise.resolve());
      expect(error).toMatchObject({ code: "unavailable", retryAfterS: 17 });
    });

    it.each(Object.keys(calls))("%s: a redirect is not followed", async (name) => {
      let reached = 0;
      const elsewhere = createServer((_request, response) => {
        reached += 1;
        response.end("a secret of the service's own network ".repeat(100));
      });
      await new Promise<void>((done) => void elsewhere.listen(0, "127.0.0.1", done));
      try {
        const location = `http://127.0.0.1:${(elsewhere.address() as AddressInfo).port}/metadata`;
        for (const status of [301, 302, 303, 307, 308]) {
          wrongs({ do: "answer", status, headers: { location }, body: "" });
          const error = await failureOf(calls[name]?.() ?? Promise.resolve());
          expect(["provider_error", "unavailable"]).toContain(error.code);
        }
        // Where the look at a file succeeds, too.
        service.server.misbehave = ({ area, method }) =>
          area === "envd" && method === "GET"
            ? { do: "answer", status: 302, headers: { location }, body: "" }
            : undefined;
        if (name === "file read") await failureOf(calls[name]?.() ?? Promise.resolve());
        expect(reached).toBe(0);
      } finally {
        elsewhere.close();
      }
    });

    it("what a service lists that is not what was asked for is neither ended nor entered", async () => {
      const [ours, theirs] = [service.open(), service.open({ instanceId: "installation-2" })];
      const other = specOf();
      await theirs.spawn(other, soon());
      try {
        const sandboxes = service.server.sandboxes.map(({ id, endAt, metadata }) => ({
          sandboxID: id,
          templateID: "t",
          clientID: "c",
          startedAt: new Date().toISOString(),
          endAt: endAt.toISOString(),
          cpuCount: 1,
          memoryMB: 1,
          diskSizeMB: 1,
          state: "running",
          envdVersion: "0.9.0",
          metadata,
        }));
        const headers = { "content-type": "application/json" };
        const all = JSON.stringify(sandboxes);
        whenAsked("api", /^GET \/[^?]*sandboxes\?/, { do: "answer", status: 200, headers, body: all });
        const before = marked();
        await ours.destroy(randomIds.runtimeId(), soon());
        await ours.destroy(other.runtimeId, soon());
        expect(marked()).toEqual(before);
        await expect(ours.adopt(other.runtimeId, soon())).rejects.toThrow(RuntimeGone);
        await expect(ours.adopt(randomIds.runtimeId(), soon())).rejects.toThrow(RuntimeGone);
      } finally {
        service.server.misbehave = () => undefined;
        await theirs.destroy(other.runtimeId, soon());
        await ours[Symbol.asyncDispose]();
        await theirs[Symbol.asyncDispose]();
      }
    });

    it("a list of users is read to its first MiB", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const uidWith = async (rowsBefore: number) => {
        const body = `${"x:x:1:1::/:\n".repeat(rowsBefore)}root:x:7:0:root:/:/bin/sh\n`;
        const headers = { "content-type": "application/octet-stream" };
        whenAsked("envd", /^GET .*passwd/, { do: "answer", status: 200, headers, body });
        return (await patient.sandbox(runtimeId).files.stat("/etc/hostname", soon())).uid;
      };
      try {
        expect(await uidWith(100_000)).toBe(65_534);
        expect(await uidWith(1_000)).toBe(7);
      } finally {
        await patient[Symbol.asyncDispose]();
      }
    });

    it.each(["drip", "cut"] as const)(
      "an answer that begins and then comes to its end in no time (%s) fails each call in its own time",
      async (then) => {
        const outcomes = await Promise.all(
          Object.entries(calls).map(async ([name, call]) => {
            wrongs({ do: "begin", type: "application/json", body: '{"entry":{"name":"', then });
            const startedAt = performance.now();
            const { code } = await failureOf(call());
            expect(performance.now() - startedAt, name).toBeLessThan(patienceMs * 10);
            return [name, ["unavailable", "provider_error"].includes(code)];
          }),
        );
        expect(outcomes.filter(([, isTold]) => !isTold)).toEqual([]);
      },
    );

    it.each<[string, RegExp, () => Promise<unknown>]>([
      ["a read", /^GET .*hostname/, () => operations.files.read("/etc/hostname", unbounded)],
      ["a watch", /WatchDir/, () => operations.files.watch("/etc", unbounded)],
    ])("%s that has no answer in its time is let go of", async (_title, path, call) => {
      whenAsked("envd", path, { do: "hang" });
      const letGo = new Promise<void>((resolve) => {
        service.server.onHung = resolve;
      });
      expect((await failureOf(call())).code).toBe("unavailable");
      await letGo;
    });

    it.each([400, 500])(
      "input that is answered with a page and %i is not let go of without a word",
      async (status) => {
        const patient = service.open();
        await patient.adopt(runtimeId, soon());
        const view = await patient.sandbox(runtimeId).execs.start(shell("cat", { stdin: true }), soon());
        whenAsked("envd", /SendInput/, { do: "answer", status, body: said });
        await view.writeStdin(Buffer.from("hello"));
        expect((await finish(view)).exit.reason).toBe("lost");
        await patient[Symbol.asyncDispose]();
      },
    );

    it("a stream that cannot be understood is no refusal of what was asked for", async () => {
      const message = Buffer.from("\0\0\0\0\u0007no JSON");
      whenAsked("envd", /Process\/Start/, {
        do: "answer",
        status: 200,
        headers: { "content-type": "application/connect+json" },
        body: message.toString(),
      });
      const { code } = await failureOf(operations.execs.start(shell("true"), soon()));
      expect(code).toBe("provider_error");
    });

    it("an answer without end is broken off where it is longer than believable", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const { files, execs } = patient.sandbox(runtimeId);
      const blanks = Buffer.alloc(mebibyte, " ");
      const prefix = Buffer.alloc(5);
      prefix.writeUInt32BE(2 ** 30);
      const asked: [() => Promise<unknown>, Misbehaviour, number][] = [
        [() => patient.inventory(soon()), { do: "flood", type: "application/json", body: blanks }, 64],
        [() => files.stat("/etc", soon()), { do: "flood", type: "application/json", body: blanks }, 64],
        [
          () => execs.start(shell("true"), soon()),
          { do: "flood", type: "application/connect+json", first: prefix, body: blanks },
          4,
        ],
      ];
      for (const [ask, wrong, mostMebibytes] of asked) {
        service.server.flooded = 0;
        wrongs(wrong);
        const error = await failureOf(ask());
        expect(error.code).toBe("provider_error");
        // What the connection holds comes on top.
        expect(service.server.flooded / mebibyte).toBeLessThan(mostMebibytes + 16);
      }
      await patient[Symbol.asyncDispose]();
    });

    it("an answer of more values than are believable is broken off there, however short each is", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const { files, execs } = patient.sandbox(runtimeId);
      const body = Buffer.from("{},".repeat(mebibyte / 3));
      const type = "application/json";
      const prefix = Buffer.alloc(5);
      prefix.writeUInt32BE(4 * mebibyte);
      const first = Buffer.from('{"entries":[');
      const asked: [() => Promise<unknown>, Misbehaviour, number][] = [
        [() => patient.inventory(soon()), { do: "flood", type, first: Buffer.from("["), body }, 4],
        [() => files.list("/etc", { ...soon(), depth: 1 }), { do: "flood", type, first, body }, 4],
        [
          () => execs.start(shell("true"), soon()),
          { do: "flood", type: "application/connect+json", first: Buffer.concat([prefix, first]), body },
          0,
        ],
      ];
      for (const [ask, wrong, mostMebibytes] of asked) {
        service.server.flooded = 0;
        wrongs(wrong);
        const error = await failureOf(ask());
        expect(error.code).toBe("provider_error");
        // What the connection holds comes on top.
        expect(service.server.flooded / mebibyte).toBeLessThan(mostMebibytes + 16);
      }
      await patient[Symbol.asyncDispose]();
    });

    it("commands that write in small pieces keep nobody waiting for the sum of them", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const { execs } = patient.sandbox(runtimeId);
      const message = (event: object) => {
        const text = Buffer.from(JSON.stringify({ event }));
        const prefix = Buffer.alloc(5);
        prefix.writeUInt32BE(text.length, 1);
        return Buffer.concat([prefix, text]);
      };
      const small = message({ data: { stdout: "eA==" } });
      const body = Buffer.concat(Array.from({ length: 10_000 }, () => small));
      const first = message({ start: { pid: 7 } });
      whenAsked("envd", /Process\/Start/, { do: "flood", type: "application/connect+json", first, body });
      using watch = new TurnWatch();
      const readSome = async () => {
        const view = await execs.start(shell("true"), soon());
        let bytes = 0;
        for await (const event of view.events) {
          if (event.type === "output") bytes += event.data.length;
          if (bytes > 10_000) break;
        }
      };
      await Promise.all(Array.from({ length: 12 }, readSome));
      await patient[Symbol.asyncDispose]();
      expect(watch.longestMs).toBeLessThan(longestTurnMs);
    }, 60_000);

    it("what a sandbox says in place of a helper keeps nobody waiting, however many words it has", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const sandbox = patient.sandbox(runtimeId);
      // Messages of a MiB: a body is text, and so are all bytes of that length.
      const message = (text: string) => `\0\0\x10\0\0${text.padEnd(mebibyte)}`.slice(0, mebibyte + 5);
      const said = (words: () => string, messages: number) => {
        const data = Buffer.from(Array.from({ length: 390_000 }, words).join("")).toString("base64");
        const output = message(JSON.stringify({ event: { data: { stdout: data.slice(0, 1_048_400) } } }));
        const end = JSON.stringify({ event: { end: { exitCode: 0, exited: true, status: "" } } });
        const body = `${message('{"event":{"start":{"pid":7}}}')}${output.repeat(messages)}${message(end)}`;
        const headers = { "content-type": "application/connect+json" };
        whenAsked("envd", /Process\/Start/, { do: "answer", status: 200, headers, body });
      };
      using watch = new TurnWatch();
      const refused = async (call: () => Promise<unknown>) => {
        await pause(50);
        watch.restart();
        const { code } = await failureOf(call());
        await pause(50);
        return code;
      };
      let next = 0;
      const name = () => {
        next = (next * 5 + 3) % 10_007;
        return (next % 36).toString(36);
      };
      said(() => `/${name()}\0`, 24);
      expect(await refused(() => sandbox.files.glob("/**", soon(60_000)))).toBe("too_large");
      said(() => "/\0", 24);
      watch.restart();
      expect(await sandbox.files.glob("/a", soon(60_000))).toEqual([]);
      said(() => "1 ", 8);
      expect(await refused(() => sandbox.stats(soon()))).toBe("provider_error");
      await patient[Symbol.asyncDispose]();
      expect(watch.longestMs).toBeLessThan(longestTurnMs);
    }, 120_000);

    it("an answer in chunks of a byte is broken off", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const { execs, files } = patient.sandbox(runtimeId);
      await files.write("/tmp/long", chunks(Buffer.alloc(mebibyte)), soon());
      const body = Buffer.from("1\r\n \r\n".repeat(1_000));
      const first = Buffer.alloc(5);
      first.writeUInt32BE(mebibyte);
      const read = async () => await collect((await files.read("/tmp/long", soon())).body);
      const asked: [() => Promise<unknown>, RegExp, { type: string; first?: Buffer }][] = [
        [() => patient.inventory(soon()), /sandboxes/, { type: "application/json" }],
        [
          () => execs.start(shell("true"), soon()),
          /Process\/Start/,
          { type: "application/connect+json", first },
        ],
        [read, /GET \/files/, { type: "application/octet-stream" }],
      ];
      for (const [ask, path, wrong] of asked) {
        service.server.flooded = 0;
        service.server.misbehave = (request) =>
          path.test(`${request.method} ${request.path}`)
            ? { do: "flood", ...wrong, body, isChunked: true }
            : undefined;
        expect((await failureOf(ask())).code).toBe("provider_error");
        // What the connection holds comes on top.
        expect(service.server.flooded / mebibyte).toBeLessThan(8);
      }
      await patient[Symbol.asyncDispose]();
    });

    it("an answer that is packed is not taken: what comes of it may be of any length", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const { files, execs } = patient.sandbox(runtimeId);
      // The beginning of a message of a GiB, or of whatever a reader of JSON makes of it.
      const body = gzipSync(
        Buffer.concat([Buffer.from([0, 0x40, 0, 0, 0]), Buffer.alloc(16 * mebibyte, " ")]),
      );
      const headers = { "Content-Encoding": "x-gzip" };
      const asked: [() => Promise<unknown>, string][] = [
        [() => patient.inventory(soon()), "application/json"],
        [() => files.stat("/etc", soon()), "application/json"],
        [() => execs.start(shell("true"), soon()), "application/connect+json"],
      ];
      for (const [ask, type] of asked) {
        service.server.flooded = 0;
        wrongs({ do: "flood", type, headers, body });
        expect((await failureOf(ask())).code).toBe("provider_error");
        expect(service.server.flooded).toBeLessThan(16 * mebibyte);
      }
      await patient[Symbol.asyncDispose]();
    });

    it("no call asks for an answer that is packed", async () => {
      const patient = service.open();
      const spec = specOf();
      const asked = new Map<string, string | undefined>();
      service.server.misbehave = ({ method, path, headers }) => {
        asked.set(`${method} ${path}`, String(headers["accept-encoding"]));
        return undefined;
      };
      await patient.spawn(spec, soon());
      const sandbox = patient.sandbox(spec.runtimeId);
      const { files, execs } = sandbox;
      await execs.start(shell("true"), soon());
      await files.write("/tmp/file", someBytes(), soon());
      await collect((await files.read("/tmp/file", soon())).body);
      await Promise.all([
        sandbox.stats(soon()),
        sandbox.setExpiry(500_000, soon()),
        patient.inventory(soon()),
      ]);
      await patient.destroy(spec.runtimeId, soon());
      await patient[Symbol.asyncDispose]();
      expect(asked.size).toBeGreaterThan(8);
      expect([...asked].filter(([, encoding]) => encoding !== "identity")).toEqual([]);
    });

    it("an answer that calls itself a stream is one where a stream was asked for", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const prefix = Buffer.from([0, 0, 0x0f, 0xff, 0xfb]);
      const body = Buffer.concat([prefix, Buffer.alloc(mebibyte - prefix.length, " ")]);
      service.server.flooded = 0;
      wrongs({ do: "flood", type: "application/connect+json", body });
      expect((await failureOf(patient.inventory(soon()))).code).toBe("provider_error");
      expect(service.server.flooded / mebibyte).toBeLessThan(64 + 16);
      await patient[Symbol.asyncDispose]();
    });

    it("nobody is made to wait longer than a minute", async () => {
      wrongs({ do: "answer", status: 429, headers: { "retry-after": "1e15" }, body: said });
      for (const name of ["inventory", "file stat", "file read"])
        expect((await failureOf(calls[name]?.() ?? Promise.resolve())).retryAfterS, name).toBe(60);
    });

    const statuses = [200, 400, 401, 403, 404, 409, 500, 503, 507];
    it.each(statuses)(
      "nothing of what the service says with status %d reaches an error's words, nor a key its causes",
      async (status) => {
        const { apiKey } = service.server;
        const token = service.server.seen.findLast(({ area }) => area === "envd")?.headers["x-access-token"];
        expect(token).toBeTypeOf("string");
        const text = `${said} ${apiKey} ${token}`;
        const bodies = [
          { "content-type": "text/html", body: text },
          { "content-type": "application/json", body: JSON.stringify({ code: status, message: text }) },
        ];
        for (const { body, ...headers } of bodies) {
          // JSON with 200 is an answer, whatever is in it.
          if (status === 200 && headers["content-type"] === "application/json") continue;
          wrongs({ do: "answer", status, headers, body });
          for (const [name, call] of Object.entries(calls)) {
            const error = await failureOf(call());
            expect(error.message, name).not.toContain("own words");
            expect(JSON.stringify(error.details), name).not.toContain("own words");
            expect(inspect(error, { depth: 10 }), name).not.toContain(apiKey);
            expect(inspect(error, { depth: 10 }), name).not.toContain(token);
          }
        }
      },
    );

    it.each([
      [401, "provider_error"],
      [403, "provider_error"],
      [500, "provider_error"],
      [503, "unavailable"],
    ])("status %d of the control API is %s", async (status, code) => {
      const body = JSON.stringify({ code: status, message: said });
      whenAsked("api", /./, { do: "answer", status, headers: { "content-type": "application/json" }, body });
      for (const name of ["inventory", "spawn", "setExpiry"]) {
        const error = await failureOf(calls[name]?.() ?? Promise.resolve());
        expect(error.code, name).toBe(code);
        if (status < 500) expect(error.message).toContain("providers.e2b.api_key");
      }
      expect((await provider.check(soon())).healthy).toBe(false);
    });

    it("a service that is not there at all is Unavailable, and an unhealthy check that names no key", async () => {
      const nowhere = service.open({ apiUrl: "http://127.0.0.1:9", timeoutMs: patienceMs });
      expect((await failureOf(nowhere.inventory(soon()))).code).toBe("unavailable");
      const check = await nowhere.check(soon());
      expect(check).toMatchObject({ healthy: false });
      expect(JSON.stringify(check)).not.toContain(service.server.apiKey);
      await nowhere[Symbol.asyncDispose]();
      const keyless = service.open({ apiKey: "" });
      expect((await keyless.check(soon())).error).toContain("providers.e2b.api_key");
      await keyless[Symbol.asyncDispose]();
    });

    it.each(["{}", '{"sandboxID": 7}', "[", '"text"'])(
      "half an answer to a create, %s, is a provider_error",
      async (body) => {
        const headers = { "content-type": "application/json" };
        whenAsked("api", /^POST \/v2\/sandboxes$/, { do: "answer", status: 201, headers, body });
        const spec = specOf();
        expect((await failureOf(provider.spawn(spec, soon()))).code).toBe("provider_error");
        service.server.misbehave = () => undefined;
        await provider.destroy(spec.runtimeId, soon());
      },
    );

    it("a create that was carried out and never answered is found by its label and ended", async () => {
      whenAsked("api", /^POST \/v2\/sandboxes$/, { do: "carry out and cut" });
      const spec = specOf();
      const patient = service.open();
      expect((await failureOf(patient.spawn(spec, soon()))).code).toBe("unavailable");
      expect(marked()).toContain(spec.runtimeId);
      await patient.destroy(spec.runtimeId, soon());
      expect(marked()).not.toContain(spec.runtimeId);
      await patient[Symbol.asyncDispose]();
    });

    it("a create that is carried out after its answer was given up is found too", async () => {
      whenAsked("api", /^POST \/v2\/sandboxes$/, { do: "delay", ms: patienceMs + 400 });
      const spec = specOf();
      expect((await failureOf(provider.spawn(spec, soon()))).code).toBe("unavailable");
      expect(marked()).not.toContain(spec.runtimeId);
      await provider.destroy(spec.runtimeId, soon());
      await eventually(() =>
        expect(service.server.seen.some(({ method }) => method === "DELETE")).toBe(true),
      );
      expect(marked()).not.toContain(spec.runtimeId);
    });

    it("of what the service calls a version only one is told", async () => {
      const headers = { "content-type": "application/json" };
      for (const [envdVersion, told] of [
        ["0.4.1", /has envd 0\.4\.1, and this needs/],
        [
          `0.4.1-${"x".repeat(100_000)}`,
          /^e2b told no version of the envd of template "[^"]+" that could be understood$/,
        ],
      ] as const) {
        const made = { sandboxID: "made", templateID: "t", clientID: "c", envdVersion };
        const body = JSON.stringify(made);
        whenAsked("api", /^POST \/v2\/sandboxes$/, { do: "answer", status: 201, headers, body });
        expect((await failureOf(service.open().spawn(specOf(), soon()))).message).toMatch(told);
      }
    });

    it("a spawn whose sandbox cannot be furnished ends it", async () => {
      whenAsked("envd", /MakeDir/, { do: "answer", status: 500, body: said });
      const spec = specOf();
      await failureOf(service.open().spawn(spec, soon()));
      expect(marked()).not.toContain(spec.runtimeId);
    });

    it("a command whose stream breaks is followed on, and its exit is the real one", async () => {
      const script = "i=0; while [ $i -lt 20 ]; do echo $i; i=$((i+1)); sleep 0.05; done; exit 6";
      await using view = await operations.execs.start(shell(script), soon());
      const { rest } = await readUntil(view, "3\n");
      service.server.breakAll();
      let seen = "";
      for (let next = await rest.next(); !next.done; next = await rest.next()) {
        if (next.value.type === "output") seen += next.value.data.toString();
        else expect(next.value.exit).toMatchObject({ exitCode: 6, reason: "exited" });
      }
      expect(seen).toContain("19\n");
    });

    it("a command that ended while its stream was broken is lost, never a success", async () => {
      const spec = shell("echo up; sleep 0.3; exit 0");
      await using view = await operations.execs.start(spec, soon());
      const { rest } = await readUntil(view, "up");
      whenAsked("envd", /Process\/Connect/, { do: "answer", status: 503, body: said });
      service.server.breakAll();
      await new Promise((resolve) => setTimeout(resolve, 600));
      service.server.misbehave = () => undefined;
      const last = await rest.next();
      expect(last.value).toMatchObject({ type: "exit", exit: { reason: "lost" } });
    });

    it("a command that cannot be followed any more is lost, and killed", { timeout: 45_000 }, async () => {
      const spec = shell("sleep 6189", { timeoutMs: 600_000 });
      await using view = await operations.execs.start(spec, soon());
      whenAsked("envd", /Process\/Connect/, { do: "answer", status: 503, body: said });
      service.server.breakAll();
      expect((await finish(view)).exit.reason).toBe("lost");
      service.server.misbehave = () => undefined;
      await eventually(async () => {
        const left = await run(
          operations,
          "grep -la 'sleep.618[9]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l",
        );
        expect(left.stdout.trim()).toBe("0");
      });
    });

    it("input whose arrival nobody knows ends its command as lost", async () => {
      const spec = shell("cat >/dev/null; echo whole", { stdin: true });
      await using view = await operations.execs.start(spec, soon());
      whenAsked("envd", /SendInput/, { do: "answer", status: 503, body: said });
      await view.writeStdin(Buffer.from("some"));
      const { exit, stdout } = await finish(view);
      expect(exit.reason).toBe("lost");
      expect(stdout).toBe("");
    });

    it("a command whose input is lost while its sandbox takes no calls is ended once it does", async () => {
      const spec = shell("cat >/dev/null; sleep 6187", { stdin: true, timeoutMs: 600_000 });
      await using view = await operations.execs.start(spec, soon());
      whenAsked("envd", /SendInput|Process\/(Start|SendSignal)/, { do: "answer", status: 503, body: said });
      await view.writeStdin(Buffer.from("some"));
      expect((await finish(view)).exit.reason).toBe("lost");
      service.server.misbehave = () => undefined;
      await eventually(async () => {
        const left = await run(
          operations,
          "grep -la 'sleep.618[7]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l",
        );
        expect(left.stdout.trim()).toBe("0");
      });
    });

    it("many commands of one sandbox, and files that are not read, keep no other sandbox waiting", {
      timeout: 60_000,
    }, async () => {
      const patient = service.open();
      const specs = [specOf(), specOf()] as const;
      for (const spec of specs) await patient.spawn(spec, soon());
      const [busy, beside] = [patient.sandbox(specs[0].runtimeId), patient.sandbox(specs[1].runtimeId)];
      await run(busy, "head -c 20000000 /dev/zero >/tmp/large");
      const bodies = [];
      for (let count = 0; count < 12; count += 1) bodies.push(await busy.files.read("/tmp/large", soon()));
      await beside.files.write("/tmp/small", someBytes(), soon());
      expect(String(await collect((await beside.files.read("/tmp/small", soon())).body))).toBe("some bytes");
      for (const { body } of bodies) body.destroy();
      for (let count = 0; count < 205; count += 1)
        await busy.execs.startDetached(shell("sleep 600", { detached: true }), soon());
      expect((await run(beside, "echo free")).stdout).toBe("free\n");
      for (const { runtimeId } of specs) await patient.destroy(runtimeId, soon());
      await patient[Symbol.asyncDispose]();
    });

    it("a kill that cannot be made is told, and made when it is asked for again", async () => {
      const spec = shell("sleep 600", { detached: true });
      await operations.execs.startDetached(spec, soon());
      whenAsked("api", /^DELETE/, { do: "answer", status: 500, body: said });
      const other = specOf();
      const patient = service.open();
      await patient.spawn(other, soon());
      expect((await failureOf(patient.destroy(other.runtimeId, soon()))).code).toBe("provider_error");
      expect(marked()).toContain(other.runtimeId);
      service.server.misbehave = () => undefined;
      await patient.destroy(other.runtimeId, soon());
      expect(marked()).not.toContain(other.runtimeId);
      await patient[Symbol.asyncDispose]();
      await operations.execs.kill(spec.execId, { ...soon(), reason: "cancelled" });
    });

    it("a command whose kill cannot be made now is killed later, and not told as ended before", async () => {
      const spec = shell("sleep 6188", { detached: true });
      await operations.execs.startDetached(spec, soon());
      whenAsked("envd", /Process\/(Start|SendSignal)/, { do: "answer", status: 503, body: said });
      const reason = new Error("waited enough");
      const stop = new AbortController();
      setTimeout(() => stop.abort(reason), 200);
      const kill = operations.execs.kill(spec.execId, { signal: stop.signal, reason: "cancelled" });
      await expect(kill).rejects.toBe(reason);
      expect((await operations.execs.get(spec.execId, soon())).exit).toBeUndefined();
      service.server.misbehave = () => undefined;
      await eventually(async () => {
        expect((await operations.execs.get(spec.execId, soon())).exit).toMatchObject({ reason: "cancelled" });
      });
      const left = await run(operations, "grep -la 'sleep.618[8]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l");
      expect(left.stdout.trim()).toBe("0");
    });

    it("a watch that breaks off ends, and an upload that does leaves the old file and nothing else", async () => {
      const patient = service.open();
      await patient.adopt(runtimeId, soon());
      const { files } = patient.sandbox(runtimeId);
      await run(operations, "mkdir -p /tmp/broken && echo old >/tmp/broken/file");
      const watched = await files.watch("/tmp/broken", { ...soon(), recursive: false });
      const ended = Array.fromAsync(watched).catch(() => []);
      async function* endless() {
        for (;;) {
          yield Buffer.alloc(65_536);
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
      }
      const upload = failureOf(files.write("/tmp/broken/file", endless(), soon()));
      await new Promise((resolve) => setTimeout(resolve, 200));
      service.server.breakAll();
      expect(["unavailable", "provider_error"]).toContain((await upload).code);
      expect((await ended).every(({ path }) => path.startsWith("/tmp/broken/"))).toBe(true);
      await eventually(async () =>
        expect((await run(operations, "ls -A /tmp/broken; cat /tmp/broken/file")).stdout).toBe("file\nold\n"),
      );
      await patient[Symbol.asyncDispose]();
    });

    it("a download that breaks off fails, and is never a shorter file", async () => {
      await run(operations, "head -c 20000000 /dev/zero >/tmp/large");
      const { body } = await operations.files.read("/tmp/large", soon());
      const reading = collect(body);
      setTimeout(() => service.server.breakAll(), 5);
      const outcome = await reading.then(
        (whole) => whole.length,
        (error: unknown) => error,
      );
      // It may have been faster.
      if (outcome !== 20_000_000) expect(outcome).toBeInstanceOf(DomainError);
    });
  },
);
