import type { CommandUnknownOpts as Command } from "@commander-js/extra-typings";

/** A command line as far as it says which command is meant, such as "alcove quota ls", and what may come next. */
export interface Place {
  readonly at: string;
  readonly options: readonly CompletedOption[];
  /** Its arguments, as far as something is known of them. */
  readonly arguments: readonly CompletedArgument[];
}

export interface CompletedArgument {
  /** How many come before it. */
  readonly position: number;
  /** It may be repeated, so that this is also what comes behind it. */
  readonly repeated: boolean;
  /** What it may be: commands, or its choices. */
  readonly words: readonly CompletedWord[];
  /** A sandbox, by id or name. */
  readonly sandbox: boolean;
  readonly file: boolean;
}

export interface CompletedWord {
  readonly name: string;
  readonly description: string;
}

export interface CompletedOption {
  readonly long: string;
  readonly short: string | undefined;
  readonly description: string;
  /** undefined: it takes no value. */
  readonly value: "file" | "text" | readonly string[] | undefined;
}

const sandboxArguments = new Set(["id", "ids", "target"]);
const fileArguments = new Set(["source", "target", "folder"]);
const fileOption = /<(?:file|dir)>$/;

/** Every place of a program, the program itself first. What has two names is at two places. */
export function placesOf(command: Command, at = command.name()): Place[] {
  const helper = command.createHelp();
  const commands = helper
    .visibleCommands(command)
    .map((child) => ({ name: child.name(), description: child.description() }));
  // Either side of a copy may be in a sandbox; what else has a source takes it from here.
  const isCopy = command.registeredArguments.some((argument) => argument.name() === "target");
  const given = command.registeredArguments.map((argument, position) => ({
    position,
    repeated: argument.variadic,
    words: (argument.argChoices ?? []).map((name) => ({ name, description: argument.description })),
    sandbox: isCopy || sandboxArguments.has(argument.name()),
    file: fileArguments.has(argument.name()),
  }));
  const below = { position: 0, repeated: false, words: commands, sandbox: false, file: false };
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
    options,
    arguments: (commands.length > 0 ? [below] : given).filter(
      ({ words, sandbox, file }) => words.length > 0 || sandbox || file,
    ),
  };
  const deeper = command.commands.flatMap((child) =>
    [child.name(), ...child.aliases()].flatMap((name) => placesOf(child, `${at} ${name}`)),
  );
  return [place, ...deeper];
}

/** As the shells have them: the place and the option that takes a value, "alcove spawn --ttl". */
export function valuedOptions(places: readonly Place[]): string[] {
  return places.flatMap(({ at, options }) =>
    options
      .filter(({ value }) => value !== undefined)
      .flatMap(({ long, short }) => (short === undefined ? [long] : [long, short]))
      .map((flag) => `${at} ${flag}`),
  );
}
