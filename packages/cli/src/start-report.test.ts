import { expect, test } from "vitest";
import { startReport } from "./commands/serve.ts";

const service = {
  url: "http://127.0.0.1:7423",
  defaultProvider: "native",
  simulated: false,
  providers: ["native"],
  refused: [],
};
const start = { elapsedMs: 5, file: undefined, dataDir: "/data", auth: false, keyFile: "", pooled: false };

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
