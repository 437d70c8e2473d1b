import { AlcoveError } from "@alcove/sdk";
import type { NetworkMode, Template, TemplateReplacement } from "@alcove/wire";
import { type ClientFlags, interruptSignal, type JsonFlags, openClient } from "../context.ts";
import { printJson } from "../terminal/output.ts";
import { table } from "../terminal/table.ts";

type TemplateFlags = ClientFlags & JsonFlags;

export interface TemplateSaveFlags extends ClientFlags, JsonFlags {
  image: string;
  description?: string;
  provider?: string;
  memory?: number;
  vcpus?: number;
  ttl?: string;
  metadata?: Record<string, string>;
  env?: Record<string, string>;
  user?: string;
  workdir?: string;
  network?: NetworkMode;
}

export async function templateList(flags: TemplateFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  const templates: Template[] = [];
  for await (const template of client.templates.all({ signal: interrupt.signal })) templates.push(template);
  if (flags.json) printJson(templates);
  else if (templates.length === 0) process.stderr.write("no templates\n");
  else process.stdout.write(templateTable(templates));
}

export async function templateShow(name: string, flags: TemplateFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  printJson(await client.templates.get(name, { signal: interrupt.signal }));
}

/** Makes it, or replaces what has the name. */
export async function templateSave(name: string, flags: TemplateSaveFlags): Promise<void> {
  const { description, image, provider, memory, vcpus, ttl, metadata, env, user, workdir, network } = flags;
  using client = openClient(flags);
  using interrupt = interruptSignal();
  // Every field of the request, so that one it gains is not forgotten here.
  const fields: {
    [K in Exclude<keyof Required<TemplateReplacement>, "name" | "created_at" | "updated_at">]:
      | TemplateReplacement[K]
      | undefined;
  } = {
    description,
    image,
    provider,
    memory_mb: memory,
    vcpus,
    ttl,
    metadata,
    env,
    user,
    workdir,
    network,
  };
  const given = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
  const template = { ...given, image };
  const { signal } = interrupt;
  const saved = await client.templates.replace(name, template, { signal }).catch((error: unknown) => {
    if (!(error instanceof AlcoveError) || error.code !== "not_found") throw error;
    return client.templates.create({ name, ...template }, { signal });
  });
  if (flags.json) printJson(saved);
  else process.stdout.write(templateTable([saved]));
}

export async function templateRemove(name: string, flags: ClientFlags): Promise<void> {
  using client = openClient(flags);
  using interrupt = interruptSignal();
  await client.templates.remove(name, { signal: interrupt.signal });
  process.stdout.write(`${name}\n`);
}

function templateTable(templates: readonly Template[]): string {
  return table(
    ["NAME", "IMAGE", "PROVIDER", "MEMORY", "VCPUS", "TTL", "DESCRIPTION"],
    templates.map((template) => [
      template.name,
      template.image,
      template.provider ?? "default",
      template.memory_mb === undefined ? "default" : `${template.memory_mb} MB`,
      String(template.vcpus ?? "default"),
      template.ttl ?? "default",
      template.description ?? "-",
    ]),
  );
}
