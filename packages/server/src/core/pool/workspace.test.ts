import { expect, test } from "vitest";
import { type FileEntry, type FileOperations, NotFound, ProviderError } from "../../ports/index.ts";
import { makeWorkspace, workspacePath } from "./workspace.ts";

test("a path is one of the workspace, however it is written", () => {
  const paths = {
    "/": "/workspace",
    "/workspace": "/workspace",
    "/workspace/": "/workspace/",
    "/x": "/workspace/x",
    "/workspace/x": "/workspace/x",
    "//workspace//x/./y": "/workspace/x/y",
    "/workspaces": "/workspace/workspaces",
    "/..": "/workspace",
    "/../../etc/passwd": "/workspace/etc/passwd",
    "/workspace/../etc/passwd": "/workspace/etc/passwd",
    "/workspace/..": "/workspace",
    "/a/../../workspace/x": "/workspace/x",
    "/**/*.py": "/workspace/**/*.py",
  };
  for (const [path, expected] of Object.entries(paths)) expect(workspacePath(path), path).toBe(expected);
});

/** What is asked of files that hold this at /workspace. */
async function asked(found: Partial<FileEntry> | undefined, change: Partial<FileOperations> = {}) {
  const calls: string[] = [];
  const files = {
    stat: async () => {
      if (found === undefined) throw new NotFound("/workspace does not exist");
      return found;
    },
    move: async (from: string, to: string) => void calls.push(`move ${from} ${to}`),
    mkdir: async (path: string) => void calls.push(`mkdir ${path}`),
    chmod: async (path: string, mode: number) => void calls.push(`chmod ${path} ${mode.toString(8)}`),
    ...change,
  } as unknown as FileOperations;
  await makeWorkspace(files, { uid: 10_001 }, { signal: new AbortController().signal });
  return calls;
}

test("the workspace is closed to others; one that is not its user's makes room", async () => {
  const closed = "chmod /workspace 700";
  expect(await asked({ type: "dir", uid: 10_001 })).toEqual([closed]);
  expect(await asked(undefined)).toEqual(["mkdir /workspace", closed]);
  const aside = ["move /workspace /workspace.image", "mkdir /workspace", closed];
  expect(await asked({ type: "dir", uid: 0 })).toEqual(aside);
  expect(await asked({ type: "symlink", uid: 10_001 })).toEqual(aside);
  const busy = async () => Promise.reject(new Error("it is mounted there"));
  await expect(asked({ type: "dir", uid: 0 }, { move: busy })).rejects.toThrow(ProviderError);
});
