import { execFileSync } from "node:child_process";
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { LogOutput } from "./log-output.ts";

let home: string;
let reader: number;
beforeEach(() => {
  home = mkdtempSync(path.join(tmpdir(), "alcove-log-"));
  const pipe = path.join(home, "pipe");
  execFileSync("mkfifo", [pipe]);
  reader = openSync(pipe, constants.O_RDWR | constants.O_NONBLOCK);
});
afterEach(() => {
  closeSync(reader);
  rmSync(home, { recursive: true });
});

function readAll(): string {
  const chunk = Buffer.alloc(65_536);
  let read = "";
  try {
    for (;;) read += chunk.toString("latin1", 0, readSync(reader, chunk));
  } catch (error) {
    expect(error).toMatchObject({ code: "EAGAIN" });
  }
  return read;
}

test("what found no room is counted and told where it is missing, everything else arrives in order", async () => {
  const dropped: number[] = [];
  const output = new LogOutput({
    fd: reader,
    onDropped: (lines) => {
      dropped.push(lines);
      output.write(`missing ${lines}\n`);
    },
  });
  const filler = "x".repeat(1_000);
  for (let n = 0; n < 3_000; n++) output.write(`${n} ${filler}\n`);
  let read = "";
  await vi.waitUntil(
    () => {
      read += readAll();
      return read.includes("missing");
    },
    { timeout: 30_000, interval: 5 },
  );
  output.write("last\n");
  await vi.waitUntil(
    () => {
      read += readAll();
      return read.endsWith("last\n");
    },
    { timeout: 30_000, interval: 5 },
  );
  const lines = read.split("\n").slice(0, -1);
  const kept = lines.length - 2;
  expect(dropped).toEqual([3_000 - kept]);
  expect(lines.slice(0, kept).map((line) => Number.parseInt(line, 10))).toEqual([...Array(kept).keys()]);
  expect(lines.slice(kept)).toEqual([`missing ${3_000 - kept}`, "last"]);
});
