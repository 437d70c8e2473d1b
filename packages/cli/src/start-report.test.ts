import { expect, test } from "vitest";
import { startReport } from "./commands/serve.ts";

const service = {
  url: "http://127.0.0.1:7423",
  defaultProvider: "native",
  simulated: false,
  providers: ["native"],
  refused: [],
  failing: [],
};
const start = {
  elapsedMs: 5,
  file: undefined,
  dataDir: "/data",
  auth: false,
  exposed: false,
  keyFile: "",
  pooled: false,
};

test("a provider that takes no spawns now is named, and why", () => {
  const failing = [{ name: "native", reason: "slirp4netns is missing" }];
  expect(startReport({ ...service, failing }, start)).toContain(
    "  no spawns now on   native: slirp4netns is missing\n  data  ",
  );
  expect(startReport(service, start)).not.toContain("no spawns");
});

test("who needs no key is told by who reaches the service", () => {
  const keys = (more: object) => /^ {2}keys +(.*)$/m.exec(startReport(service, { ...start, ...more }))?.[1];
  expect(keys({})).toBe("none needed, this machine only");
  expect(keys({ exposed: true })).toBe("none needed by ANYBODY who reaches it (server.allow_insecure)");
  expect(keys({ auth: true, exposed: true })).toBe("required");
});

test("the next step works as it is printed: it names what is not the default", () => {
  expect(startReport(service, start)).toContain("Next, in another terminal:\n  id=$(bin/alcove spawn)");
  const pooled = startReport(service, { ...start, pooled: true });
  expect(pooled).toContain("  id=$(bin/alcove spawn --user-id me) && bin/alcove exec $id");
  const report = startReport(
    { ...service, url: "http://127.0.0.1:8000" },
    { ...start, auth: true, keyFile: "/etc/alcove/key" },
  );
  expect(report).toContain(
    "export ALCOVE_URL=http://127.0.0.1:8000\n  export ALCOVE_API_KEY=$(cat /etc/alcove/key)\n",
  );
});
