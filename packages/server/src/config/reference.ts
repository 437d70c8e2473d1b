import { type ConfigKey, configKeys, configSections } from "./keys.ts";

/** @returns docs/configuration.md, made from the schema. */
export function configurationReference(): string {
  const lines = [
    "# Configuration",
    "",
    "<!-- Generated from packages/server/src/config/schema.ts by `node scripts/with-node.mjs scripts/config-reference.ts`. -->",
    "",
    "Alcove runs without any configuration. What is configured comes from a YAML file, the environment and the command",
    "line; a later one beats an earlier one.",
    "",
    "- **File**: the first of `--config FILE`, `$ALCOVE_CONFIG`, `./alcove.yaml`, `~/.config/alcove/config.yaml`; of an installed package `/etc/alcove/alcove.yaml` at last.",
    "- **Environment**: every key as `ALCOVE_` and the key in capitals, `_` for dots. Lists are separated by commas or",
    "  written as YAML (`[a, b]`), maps as YAML (`{name: value}`); one entry of a map is",
    "  `ALCOVE_IMAGES_ALIASES_<name>`, whose name keeps its case. An empty variable counts as not set.",
    "- **Command line**: `alcove serve --set KEY=VALUE`, and `--host`, `--port`, `--data-dir`, `--provider` for short.",
    "",
    "Durations are groups of a number and `h`, `m`, `s` or `ms`: `1h30m`. Sizes are bytes or texts such as `10MiB`.",
    "A secret `X` can be kept in a file named by `X_file` instead; giving both stops the start, and so do an unknown key,",
    "an unknown `ALCOVE_` variable and a value of the wrong kind. `ALCOVE_CONFIG`, `ALCOVE_URL` and `ALCOVE_API_KEY`",
    "(read by the client commands) are no keys, and the variables Kubernetes sets for a service called `alcove` are",
    "passed over. `alcove config lint --production` tells what is unfit for a server that others can reach.",
    "",
  ];
  const section = (title: string, description: string, prefix: string) => {
    const keys = configKeys.filter(({ key }) => parentOf(key) === prefix);
    if (keys.length === 0) return;
    lines.push(`## ${title}`, "", description, "");
    lines.push("| Key | Default | Kind | Meaning | Environment |", "|---|---|---|---|---|");
    for (const key of keys) lines.push(row(key));
    lines.push("");
  };
  section("Top level", "", "");
  for (const { key, description } of configSections) section(`\`${key}\``, description, key);
  return `${lines
    .join("\n")
    .replace(/\n{3,}/g, "\n\n")
    .trimEnd()}\n`;
}

function row(key: ConfigKey): string {
  const cells = [
    `\`${key.key}\``,
    defaultText(key),
    kindText(key),
    escapeCell(key.description),
    `\`${key.env}\``,
  ];
  return `| ${cells.join(" | ")} |`;
}

function defaultText(key: ConfigKey): string {
  if (key.default === undefined) return "unset";
  if (key.default === "") return "empty";
  return `\`${typeof key.default === "string" ? key.default : JSON.stringify(key.default)}\``;
}

function kindText(key: ConfigKey): string {
  switch (key.kind) {
    case "choice":
      return key.values.map((value) => `\`${value}\``).join(", ");
    case "flag":
      return "true, false";
    case "integer":
      return key.maximum === undefined
        ? `integer ≥ ${key.minimum ?? 0}`
        : `integer ${key.minimum ?? 0}–${key.maximum}`;
    case "ratio":
      return "number 0–1";
    case "bytes":
      return "size";
    default:
      return key.kind;
  }
}

function parentOf(key: string): string {
  return key.includes(".") ? key.slice(0, key.lastIndexOf(".")) : "";
}

/** Pipes and angle brackets would be read as a table's and HTML's. */
function escapeCell(text: string): string {
  return text.replaceAll("|", "\\|").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("*", "\\*");
}
