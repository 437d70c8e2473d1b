import { expect, it } from "vitest";
import { type GroupFiles, vacateGroup } from "./vacate-group.ts";

const failure = (code: string) => Object.assign(new Error(code), { code });

/** A group as the kernel shows it: processes end when they are moved, or fork while they are. */
class Group implements GroupFiles {
  members = new Set<string>();
  moved: string[] = [];
  handedDown = false;
  onMove: (pid: string) => void = () => undefined;

  async read(path: string): Promise<string> {
    expect(path).toBe("/own/cgroup.procs");
    return [...this.members].map((pid) => `${pid}\n`).join("");
  }
  async write(path: string, text: string): Promise<void> {
    if (path === "/own/cgroup.subtree_control") {
      if (this.members.size > 0) throw failure("EBUSY");
      expect(text).toBe("+cpu");
      this.handedDown = true;
      return;
    }
    expect(path).toBe("/own/service/cgroup.procs");
    this.onMove(text);
    if (!this.members.delete(text)) throw failure("ESRCH");
    this.moved.push(text);
  }
}

const vacate = (files: Group) => vacateGroup("/own", { into: "/own/service", handDown: "+cpu", files });

it("goes on when a process has ended meanwhile, and again while there are new ones", async () => {
  const group = new Group();
  group.members = new Set(["10", "11", "12"]);
  group.onMove = (pid) => {
    if (pid === "10") group.members.delete("11");
    if (pid === "12") group.members.add("13");
  };
  await vacate(group);
  expect(group.moved).toEqual(["10", "12", "13"]);
  expect(group.handedDown).toBe(true);
});

it("comes to an end, and fails for other reasons at once", async () => {
  const forking = new Group();
  forking.members = new Set(["1"]);
  forking.onMove = (pid) => forking.members.add(String(Number(pid) + 1));
  await expect(vacate(forking)).rejects.toThrow("EBUSY");
  const refusing = new Group();
  refusing.members = new Set(["1"]);
  refusing.onMove = () => {
    throw failure("EPERM");
  };
  await expect(vacate(refusing)).rejects.toThrow("EPERM");
  expect(refusing.handedDown).toBe(false);
});
