import { BadRequest } from "../../ports/errors.ts";

const longestUser = 128;
const longestPath = 4_096;

/**
 * Rules for how a command runs, the same for the defaults of a sandbox and for a single command.
 * @throws BadRequest for a name that is empty or holds `=` or NUL, and for a value that holds NUL.
 */
export function checkEnvironment(field: string, env: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(env)) {
    if (name === "") throw new BadRequest(`${field} holds a variable without a name`);
    if (name.includes("=") || name.includes("\0"))
      throw new BadRequest(
        `${field} name ${JSON.stringify(name.slice(0, 64))} must hold neither "=" nor NUL`,
      );
    refuseNul(`${field}.${name.slice(0, 64)}`, value);
  }
}

/** @throws BadRequest unless absolute. */
export function checkWorkdir(workdir: string): void {
  refuseNul("workdir", workdir);
  if (!workdir.startsWith("/") || workdir.length > longestPath)
    throw new BadRequest(`workdir ${JSON.stringify(workdir.slice(0, 200))} must be an absolute path`);
}

/** Whether the sandbox has such a user is for the sandbox to find out. */
export function checkUser(user: string): void {
  if (user.length > longestUser || /[\s\p{Cc}\p{Cs}/]/u.test(user))
    throw new BadRequest(`user ${JSON.stringify(user.slice(0, 80))} is not a name or uid[:gid]`);
}

export function refuseNul(field: string, text: string): void {
  if (text.includes("\0")) throw new BadRequest(`${field} must not hold a NUL character`);
}
