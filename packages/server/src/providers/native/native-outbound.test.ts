import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import {
  addresses6,
  allowed,
  closedAddresses,
  FarNetwork,
  farAddress,
  gotThrough,
  ownAddress,
  type Reached,
  resolver,
  routedAddress,
  specialAddresses,
} from "../../../test/support/far-network.ts";
import { type NativeHome, nativeHome } from "../../../test/support/native.ts";
import { networkProcesses, OutboundSandboxes } from "../../../test/support/outbound-sandboxes.ts";
import { describeWith } from "../../../test/support/requirements.ts";
import { BadRequest } from "../../ports/index.ts";
import type { NativeProvider } from "./native-provider.ts";

const reach = fileURLToPath(new URL("../../../test/support/programs/reach.py", import.meta.url));

await describeWith(["root", "agent", "launcher", "native", "slirp4netns"], "network outbound", () => {
  let network: FarNetwork;
  let home: NativeHome;
  let provider: NativeProvider;
  let sandboxes: OutboundSandboxes;

  beforeAll(async () => {
    network = await FarNetwork.open();
    home = await nativeHome();
    provider = home.open(
      { networkMode: "outbound", networkAllow: [allowed] },
      { launcher: network.launcher },
    );
    sandboxes = new OutboundSandboxes(() => provider);
  }, 60_000);

  afterEach(() => sandboxes.destroyAll());

  afterAll(async () => {
    await provider[Symbol.asyncDispose]();
    await home.remove();
    await network[Symbol.asyncDispose]();
  });

  async function tryAll(options: { addresses: string[]; addresses6?: string[] }): Promise<Reached> {
    const sandbox = await sandboxes.spawn();
    await sandbox.write("/tmp/reach.py", await readFile(reach));
    return JSON.parse(await sandbox.run(`python3 /tmp/reach.py '${JSON.stringify(options)}'`));
  }

  it("what is open is reached by every protocol, and names are resolved", async () => {
    const reached = await tryAll({ addresses: [farAddress] });
    const { echo, ...ways } = reached[farAddress] ?? {};
    const told = Object.entries(ways).filter(([way]) => !way.includes("resolver's port"));
    expect(told.filter(([, answer]) => answer !== `reached ${farAddress}`)).toEqual([]);
    // The machine decides who may send these.
    expect(echo).toMatch(/answered|ETIMEDOUT|TimeoutError|EHOSTUNREACH|EACCES/);
  });

  it("every address that is closed is refused, in every spelling and by every way around the routes", async () => {
    const before = await network.far();
    const addresses = [...closedAddresses, ownAddress, routedAddress, ...specialAddresses];
    const reached = await tryAll({ addresses, addresses6 });
    expect(gotThrough(reached)).toEqual([]);
    // Refused at once, not waited for.
    expect(reached["10.1.2.3"]?.tcp).toBe("EHOSTUNREACH");
    expect(reached["169.254.169.254"]?.["tcp, mapped"]).toBe("EHOSTUNREACH");
    expect(reached["fd00:ec2::254"]?.tcp).toBe("ENETUNREACH");
    // What was not answered did not arrive either: of the closed ones the resolver alone, which the helper asks.
    const after = await network.far();
    const arrived = (kind: "tcp" | "udp") =>
      Object.keys(after[kind]).filter((address) => after[kind][address] !== before[kind][address]);
    expect(arrived("tcp")).toEqual([]);
    expect(arrived("udp")).toEqual([resolver]);
    expect(await network.near()).toMatchObject({ tcp: {}, udp: {} });
  }, 120_000);

  it("of the machine's table of neighbours a sandbox takes two places, whatever it sends to", async () => {
    const { run, write } = await sandboxes.spawn();
    const sending = `import socket, struct
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for last in range(1, 255):
    try: sender.sendto(b"x", ("198.18.255.%d" % last, 9))
    except OSError: pass
# Past the routes, by the interface that a socket or a message names.
by_message = [(socket.SOL_IP, 8, struct.pack("i8x", socket.if_nametoindex("tap0")))]
past = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
past.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0\\0")
past.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
for last in range(1, 255):
    try: past.sendto(b"x", ("9.9.9.%d" % last, 9))
    except OSError: pass
    try: sender.sendmsg([b"x"], by_message, socket.MSG_DONTROUTE, ("9.9.8.%d" % last, 9))
    except OSError: pass
`;
    await write("/tmp/send.py", Buffer.from(sending));
    expect(await run("python3 /tmp/send.py; tail -n +2 /proc/net/arp | cut -d' ' -f1 | sort")).toBe(
      "198.18.255.2\n198.18.255.3\n",
    );
  });

  it("a sandbox may do without, and then there is nothing of a network", async () => {
    const without = await sandboxes.spawn({ network: "none" });
    expect(await without.run("ls /sys/class/net 2>/dev/null; grep -c : /proc/net/dev")).toBe("1\n");
    expect(await networkProcesses(home.dataDir, without.runtimeId)).toEqual([]);
    const within = await sandboxes.spawn();
    expect(await within.run("grep -c : /proc/net/dev")).toBe("2\n");
    expect(await networkProcesses(home.dataDir, within.runtimeId)).toHaveLength(2);
    await expect(sandboxes.spawn({ network: "host" })).rejects.toThrow(BadRequest);
  });

  it("relay and helper are nobody: a user of their own without rights or groups, and under seccomp", async () => {
    const { runtimeId } = await sandboxes.spawn();
    const processes = await networkProcesses(home.dataDir, runtimeId);
    expect(processes.map(({ name }) => name)).toEqual(["alcove-launch", "slirp4netns"]);
    for (const { status } of processes) {
      expect(Number(status.Uid?.split("\t")[0])).toBeGreaterThan(1_879_048_192);
      expect(new Set(status.Uid?.split("\t")).size).toBe(1);
      expect(status.Groups?.trim()).toBe("");
      expect(status.NoNewPrivs).toBe("1");
      // The helper's one right is within a namespace of users of its own.
      expect(["0000000000000000", "0000000000000400"]).toContain(status.CapEff);
    }
    expect(processes[0]?.status.CapEff).toBe("0000000000000000");
    expect(processes.map(({ status }) => status.Seccomp)).toEqual(["2", "2"]);
  });
});
