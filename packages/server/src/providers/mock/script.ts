const shells = new Set(["sh", "/bin/sh", "/usr/bin/sh", "bash", "/bin/bash", "/usr/bin/bash"]);

/** @returns the script a command amounts to: that of `sh -c SCRIPT [NAME ARG…]`, or the arguments, quoted. */
export function scriptOf(argv: readonly string[]): string {
  const [program = "", flag, script, , ...rest] = argv;
  if (shells.has(program) && flag === "-c" && script !== undefined)
    return rest.length === 0 ? script : `set -- ${rest.map(quote).join(" ")}\n${script}`;
  return argv.map(quote).join(" ");
}

/** The program a command starts directly, when it is no shell with a script. */
export function directProgram(argv: readonly string[]): string | undefined {
  const [program = "", flag] = argv;
  return shells.has(program) && flag === "-c" ? undefined : program;
}

function quote(text: string): string {
  return /^[\w./:=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
