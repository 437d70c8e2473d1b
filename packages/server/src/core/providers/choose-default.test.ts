import { describe, expect, it } from "vitest";
import { chooseDefault, defaultIsCertain } from "./choose-default.ts";

const works = { healthy: true, notes: [] };
const fails = (error: string) => ({ healthy: false, error, notes: [] });
const native = { name: "native", isolation: "enforced" } as const;
const docker = { name: "docker", isolation: "enforced" } as const;
const mock = { name: "mock", isolation: "simulated", check: works } as const;
const silent = { check: fails("it has not answered yet"), unanswered: true };

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
      warnings: [],
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
    expect(choice.warnings).toEqual([expect.stringContaining("SIMULATED")]);
  });

  it("throws with every reason when none works", () => {
    const candidates = [
      { name: "native", isolation: "enforced", check: fails("a") },
      { name: "docker", isolation: "enforced", check: fails("b") },
    ] as const;
    expect(() => chooseDefault(candidates)).toThrow(/native: a; docker: b.*doctor/);
  });

  it.each([
    ["has failed", { check: fails("the launcher is gone") }, "is not healthy: the launcher is gone"],
    ["has not answered", silent, "has not answered yet"],
  ])(
    "stays on the last default that %s while its sandboxes are there, and says the way out",
    (_, state, how) => {
      const candidates = [{ ...native, ...state, sandboxes: 2 }, { ...docker, check: works }, mock];
      expect(chooseDefault(candidates, { last: "native" })).toMatchObject({
        name: "native",
        warnings: [
          expect.stringMatching(
            new RegExp(
              `default provider is native, which ${how}.*2 sandboxes of it are here.*providers.default`,
            ),
          ),
        ],
      });
      expect(defaultIsCertain(candidates, { last: "native" })).toBe(true);
    },
  );

  it("stays on the last default while its sandboxes are there, though one before it works again", () => {
    const candidates = [
      { ...native, check: works },
      { ...docker, check: works, sandboxes: 1 },
    ];
    expect(chooseDefault(candidates, { last: "docker" })).toEqual({
      name: "docker",
      against: [{ name: "native", reason: "sandboxes of docker, the default before, are here" }],
      passedOver: [],
      warnings: [],
    });
  });

  it("moves on from a last default that does not work and has no sandboxes, and says so", () => {
    const candidates = [
      { ...native, check: fails("no user namespaces") },
      { ...docker, check: works },
    ];
    expect(chooseDefault(candidates, { last: "native" })).toMatchObject({
      name: "docker",
      warnings: [expect.stringMatching(/docker now; at the last start it was native \(no user namespaces\)/)],
    });
  });

  it("does not move on from a last default that has only not answered yet, unless one before it works", () => {
    const candidates = [
      { ...native, check: fails("no") },
      { ...docker, ...silent },
      { name: "proot", isolation: "none" as const, check: works },
    ];
    expect(chooseDefault(candidates, { last: "docker" }).name).toBe("docker");
    expect(chooseDefault(candidates).name).toBe("proot");
    // An earlier release wrote nothing down.
    const left = candidates.map((candidate) => ({
      ...candidate,
      sandboxes: candidate.name === "docker" ? 1 : 0,
    }));
    expect(chooseDefault(left).name).toBe("docker");
    expect(
      chooseDefault([{ ...native, check: works }, ...candidates.slice(1)], { last: "docker" }).name,
    ).toBe("native");
  });

  it("simulates nothing for as long as one could not be tried, and says why that is", () => {
    const check = { ...fails("the disk is full"), untried: true };
    expect(chooseDefault([{ ...native, check, unanswered: true }, mock], { last: "native" })).toMatchObject({
      name: "native",
      warnings: [expect.stringMatching(/native, which is not healthy: the disk is full/)],
    });
  });

  it("takes one that has not answered before a simulation", () => {
    const choice = chooseDefault([{ ...native, check: fails("no") }, { ...docker, ...silent }, mock]);
    expect(choice).toMatchObject({ name: "docker", warnings: [expect.stringContaining("has not answered")] });
  });

  it.each([
    ["nothing of the last start", undefined],
    ["of another default", "native"],
  ])("takes one that has failed before a simulation while its sandboxes are there, knowing %s", (_, last) => {
    const failed = [
      { ...native, check: fails("no") },
      { ...docker, check: fails("no engine"), sandboxes: 3 },
    ];
    expect(chooseDefault([...failed, mock], { last })).toMatchObject({
      name: "docker",
      warnings: [
        expect.stringMatching(/docker, which is not healthy: no engine; 3 sandboxes of it are here\. Spawns/),
      ],
    });
    const proot = { name: "proot", isolation: "none" as const, check: works };
    expect(chooseDefault([...failed, proot, mock], { last }).name).toBe("proot");
  });

  it("moves from a last default that works and has no sandboxes to one before it, and says why", () => {
    const candidates = [{ ...native, check: works, sandboxes: 2 }, { ...docker, check: works }, mock];
    const warned = (last: string) => chooseDefault(candidates, { last }).warnings[0];
    expect(warned("docker")).toContain(
      "at the last start it was docker (no sandboxes of it are here, and native comes before it)",
    );
    expect(warned("mock")).toContain(
      "at the last start it was mock (a simulation, which is never stayed on)",
    );
  });

  it("never stays on a simulation", () => {
    const candidates = [
      { ...native, check: works },
      { ...mock, sandboxes: 3 },
    ];
    expect(chooseDefault(candidates, { last: "mock" }).name).toBe("native");
  });

  it("is certain once nobody before the first that works is open", () => {
    expect(
      defaultIsCertain([
        { ...native, check: works },
        { ...docker, ...silent },
      ]),
    ).toBe(true);
    expect(
      defaultIsCertain([
        { ...native, ...silent },
        { ...docker, check: works },
      ]),
    ).toBe(false);
    expect(defaultIsCertain([{ ...native, check: fails("no") }, { ...docker, ...silent }, mock])).toBe(false);
    expect(
      defaultIsCertain([{ ...native, check: fails("no") }, { ...docker, check: fails("no") }, mock]),
    ).toBe(true);
  });
});
