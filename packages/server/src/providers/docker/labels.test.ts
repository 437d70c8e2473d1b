import { expect, it } from "vitest";
import type { RuntimeId } from "../../ports/index.ts";
import { containerName, runtimeOf } from "./labels.ts";

const instanceId = "0123456789abcdef";
const labels = { "alcove.instance": instanceId, "alcove.runtime": "prepared-1" };

it("a container is whose its name says, and without a name of ours whose its label does", () => {
  const of = (name: string | undefined) => runtimeOf(instanceId, { name, labels });
  expect(of(containerName(instanceId, "rt-1" as RuntimeId))).toBe("rt-1");
  expect(of(containerName("another", "rt-1" as RuntimeId))).toBe("prepared-1");
  expect(of("alcove-0123456789ab-")).toBe("prepared-1");
  expect(of(undefined)).toBe("prepared-1");
  expect(runtimeOf(instanceId, { name: "alcove-fill-0123456789ab", labels: {} })).toBeUndefined();
});
