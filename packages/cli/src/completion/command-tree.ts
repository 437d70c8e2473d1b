import type { CommandUnknownOpts as Command } from "@commander-js/extra-typings";

/** A command line as far as it says which command is meant, such as "alcove quota ls", and what may come next. */
export interface Place {
  readonly at: string;
  /** Commands below it, or what its argument may be. */
  readonly words: readonly { readonly name: string; readonly description: string }[];
  readonly options: readonly CompletedOption[];
  /** Its arguments are sandboxes, by id or name. */
  readonly takesSandboxes: boolean;
  /** Its arguments, or some of them, are files. */
  readonly takesFiles: boolean;
}

export interface CompletedOption {
  readonly long: string;
  readonly short: string | undefined;
  readonly description: string;
  /** undefined: it takes no value. */
  readonly value: "file" | "text" | readonly string[] | undefined;
}

/** The target of a copy may be a sandbox, or its source. */
const sandboxArguments = new Set(["id", "ids", "target"]);
const fileArguments = new Set(["source", "target", "folder"]);
const fileOption = /<(?:file|dir)>$/;

/** Every place of a program, the program itself first. What has two names is at two places. */
export function placesOf(command: Command, at = command.name()): Place[] {
  const helper = command.createHelp();
  const names = command.registeredArguments.map((argument) => argument.name());
  const commands = helper
    .visibleCommands(command)
    .map((child) => ({ name: child.name(), description: child.description() }));
  const choices = command.registeredArguments.flatMap(({ argChoices = [], description }) =>
    argChoices.map((name) => ({ name, description })),
  );
  const options = helper.visibleOptions(command).flatMap(({ long, short, description, flags, ...option }) =>
    long === undefined || long === null
      ? []
      : [
          {
            long,
            short: short ?? undefined,
            description,
            value: option.required
              ? (option.argChoices ?? (fileOption.test(flags) ? "file" : "text"))
              : undefined,
          } as const,
        ],
  );
  const place: Place = {
    at,
    words: [...commands, ...choices],
    options,
    takesSandboxes: names.some((name) => sandboxArguments.has(name)),
    takesFiles: names.some((name) => fileArguments.has(name)),
  };
  const below = command.commands.flatMap((child) =>
    [child.name(), ...child.aliases()].flatMap((name) => placesOf(child, `${at} ${name}`)),
  );
  return [place, ...below];
}
