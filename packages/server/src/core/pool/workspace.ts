import { posix } from "node:path";
import {
  BadRequest,
  type CallOptions,
  type FileEntry,
  type FileOperations,
  NotFound,
  type PoolSlot,
  ProviderError,
} from "../../ports/index.ts";
import { keepWorkspace, workspace } from "../files/paths.ts";

/** What an image had there. */
const setAside = "/workspace.image";

/** `/x` and `/workspace/x` are one file, and nothing leads above. */
export function workspacePath(path: string): string {
  const normal = posix.normalize(path);
  if (normal === workspace || normal.startsWith(`${workspace}/`)) return normal;
  return normal === "/" ? workspace : workspace + normal;
}

/** @throws BadRequest for a user that is not the slot's own. */
export function checkSlotUser(slot: PoolSlot, user: string | undefined): void {
  const own = String(slot.uid);
  if (user && user !== own && user !== `${own}:${own}`)
    throw new BadRequest(`user "${user}" cannot be chosen: in this sandbox everything is done as ${own}`);
}

/** Makes the workspace its user's alone. */
export async function makeWorkspace(
  files: FileOperations,
  owner: { uid: number } | undefined,
  options: CallOptions,
): Promise<void> {
  let found: FileEntry | undefined;
  try {
    found = await files.stat(workspace, options);
  } catch (error) {
    if (!(error instanceof NotFound)) throw error;
  }
  const foreign =
    found !== undefined && (found.type !== "dir" || (owner !== undefined && found.uid !== owner.uid));
  try {
    if (foreign) await files.move(workspace, setAside, options);
    // Belongs to the sandbox's user, as what nobody is named for does.
    if (foreign || found === undefined) await files.mkdir(workspace, { ...options, parents: true });
    await files.chmod(workspace, 0o700, options);
  } catch (error) {
    throw new ProviderError(`${workspace} cannot be given to its user`, { cause: error });
  }
}

/** Files of a user of the pool: every path is one of its workspace. */
export function workspaceFiles(files: FileOperations, slot: PoolSlot): FileOperations {
  const at = workspacePath;
  const own = <O extends { user?: string }>(options: O): O => {
    checkSlotUser(slot, options.user);
    return options;
  };
  return {
    stat: (path, options) => files.stat(at(path), options),
    list: (path, options) => files.list(at(path), options),
    read: (path, options) => files.read(at(path), options),
    write: async (path, body, options) => files.write(at(path), body, own(options)),
    mkdir: async (path, options) => files.mkdir(at(path), own(options)),
    move: async (from, to, options) => {
      keepWorkspace("old_path", at(from));
      keepWorkspace("new_path", at(to));
      return files.move(at(from), at(to), options);
    },
    remove: async (path, options) => {
      keepWorkspace("path", at(path));
      return files.remove(at(path), options);
    },
    chmod: (path, mode, options) => files.chmod(at(path), mode, options),
    glob: (pattern, options) => files.glob(at(pattern), options),
    archive: (path, options) => files.archive(at(path), options),
    unpack: async (path, body, options) => files.unpack(at(path), body, own(options)),
    watch: (path, options) => files.watch(at(path), options),
  };
}
