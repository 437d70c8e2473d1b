/** One thing that is wrong with a configuration. */
export interface ConfigProblem {
  /** The key concerned, `auth.api_key`, or a variable that is none, `ALCOVE_PROT`; empty: the file as a whole. */
  key: string;
  message: string;
}

/** A configuration the service must not start with. Holds every problem found, not only the first. */
export class ConfigError extends Error {
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    super(
      problems.length === 1
        ? `configuration: ${problems[0]?.message}`
        : `configuration: ${problems.length} problems\n${problems.map(({ message }) => `  - ${message}`).join("\n")}`,
    );
    this.name = "ConfigError";
    this.problems = problems;
  }
}
