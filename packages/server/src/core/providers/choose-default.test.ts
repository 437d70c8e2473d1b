import { describe, expect, it } from "vitest";
import { chooseDefault } from "./choose-default.ts";

const works = { healthy: true, notes: [] };
const fails = (error: string) => ({ healthy: false, error, notes: [] });

describe("chooseDefault", () => {
  it("takes the first that works and says what was against the others", () => {
    const choice = chooseDefault([
      { name: "native", isolation: "enforced", check: fails("user namespaces are off") },
      { name: "docker", isolation: "enforced", check: works },
      { name: "proot", isolation: "none", check: works },
      { name: "mock", isolation: "simulated", check: works },
    ]);
    expect(choice).toEqual({
      name: "docker",
      against: [{ name: "native", reason: "user namespaces are off" }],
      passedOver: ["proot", "mock"],
    });
  });

  it("takes mock last, with a warning", () => {
    const choice = chooseDefault([
      { name: "native", isolation: "enforced", check: fails("no") },
      { name: "docker", isolation: "enforced", check: fails("no socket") },
      { name: "proot", isolation: "none", check: undefined, excluded: "it is not used as root" },
      { name: "mock", isolation: "simulated", check: works },
    ]);
    expect(choice.name).toBe("mock");
    expect(choice.against.map(({ reason }) => reason)).toEqual(["no", "no socket", "it is not used as root"]);
    expect(choice.warning).toContain("SIMULATED");
  });

  it("throws with every reason when none works", () => {
    const candidates = [
      { name: "native", isolation: "enforced", check: fails("a") },
      { name: "docker", isolation: "enforced", check: fails("b") },
    ] as const;
    expect(() => chooseDefault(candidates)).toThrow(/native: a; docker: b.*doctor/);
  });
});
