import { lookup } from "node:dns/promises";
import { once } from "node:events";
import { connect } from "node:net";
import { runProgram } from "./programs.ts";

const lookMs = 5_000;

/** Where the clients of this machine get packages from: their own settings say it. */
const locations: Record<"apt" | "pip" | "npm", () => Promise<string>> = {
  apt: async () => {
    const { stdout } = await runProgram("apt-get", ["indextargets", "--format", "$(SITE)"]);
    return stdout.split("\n").find((line) => line.startsWith("http")) ?? "";
  },
  pip: async () => {
    const own = await runProgram("python3", ["-m", "pip", "config", "get", "global.index-url"]);
    if (own.exitCode === 0) return own.stdout.trim();
    const code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)";
    return (await runProgram("/usr/bin/python3", ["-c", code])).stdout.trim();
  },
  npm: async () => (await runProgram("npm", ["config", "get", "registry"])).stdout.trim(),
};

export interface PackageSource {
  /** As the client has it. */
  url: string;
  addresses: string[];
}

/** @returns where packages come from, or why none do. */
export async function packageSource(
  client: keyof typeof locations,
): Promise<PackageSource | { missing: string }> {
  const url = await locations[client]();
  if (!URL.canParse(url)) return { missing: `no ${client} is set up here` };
  const { hostname, port, protocol } = new URL(url);
  try {
    const found = await lookup(hostname, { family: 4, all: true });
    const addresses = found.map(({ address }) => address);
    const socket = connect(Number(port) || (protocol === "http:" ? 80 : 443), addresses[0]);
    await once(socket, "connect", { signal: AbortSignal.timeout(lookMs) });
    socket.destroy();
    return { url, addresses };
  } catch {
    return { missing: `what ${client} gets packages from does not answer` };
  }
}
