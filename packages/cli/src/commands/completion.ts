import type { CommandUnknownOpts as Command } from "@commander-js/extra-typings";
import { bashCompletion } from "../completion/bash.ts";
import { placesOf } from "../completion/command-tree.ts";
import { fishCompletion } from "../completion/fish.ts";
import { zshCompletion } from "../completion/zsh.ts";

const scripts = { bash: bashCompletion, zsh: zshCompletion, fish: fishCompletion };

export type Shell = keyof typeof scripts;

/** `alcove completion SHELL`: the shell's own words for everything that this program takes. */
export function completion(shell: Shell, program: Command): void {
  process.stdout.write(scripts[shell](placesOf(program)));
}
