import { type Static, Type } from "typebox";
import { SpawnRequest } from "./sandboxes.ts";

export const templateNamePattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

const { image, memory_mb, vcpus, ttl, provider, metadata, env, user, workdir, network } =
  SpawnRequest.properties;

const fields = {
  description: Type.Optional(Type.String({ maxLength: 4_096, description: "For people." })),
  memory_mb,
  vcpus,
  ttl,
  provider,
  metadata,
  env,
  user,
  workdir,
  network,
};

const GivenImage = Type.String({ ...image, minLength: 1, description: "Image of its sandboxes." });
const sentBack = {
  created_at: Type.Optional(Type.String({ description: "Ignored." })),
  updated_at: Type.Optional(Type.String({ description: "Ignored." })),
};

/** `POST /templates`. docs/api/templates.md. Empty strings mean "not given". */
export const TemplateRequest = Type.Object(
  {
    name: Type.String({
      "x-rule": "core",
      pattern: templateNamePattern,
      maxLength: 128,
      description: "Unique; letters, digits, `.`, `_` and `-`, the first a letter or digit.",
      examples: ["python"],
    }),
    image: GivenImage,
    ...fields,
    ...sentBack,
  },
  { $id: "TemplateRequest", additionalProperties: false },
);
export type TemplateRequest = Static<typeof TemplateRequest>;

/** `PUT /templates/{name}`: replaces everything but the name. */
export const TemplateReplacement = Type.Object(
  {
    name: Type.Optional(Type.String({ description: "Ignored: the path names the template." })),
    image: GivenImage,
    ...fields,
    ...sentBack,
  },
  { $id: "TemplateReplacement", additionalProperties: false },
);
export type TemplateReplacement = Static<typeof TemplateReplacement>;

/** docs/api/templates.md. What was not given is not answered. */
export const Template = Type.Object(
  {
    name: Type.String(),
    description: Type.Optional(Type.String()),
    image: Type.String(),
    memory_mb: Type.Optional(Type.Integer()),
    vcpus: Type.Optional(Type.Integer()),
    ttl: Type.Optional(Type.String()),
    provider: Type.Optional(Type.String()),
    metadata: Type.Optional(Type.Record(Type.String(), Type.String())),
    env: Type.Optional(Type.Record(Type.String(), Type.String())),
    user: Type.Optional(Type.String()),
    workdir: Type.Optional(Type.String()),
    network: Type.Optional(Type.String()),
    created_at: Type.String({ format: "date-time" }),
    updated_at: Type.String({ format: "date-time" }),
  },
  { $id: "Template" },
);
export type Template = Static<typeof Template>;

const { template: _, ...overrides } = SpawnRequest.properties;

/** `POST /templates/{name}/spawn`: every field of a spawn, over the template's own. */
export const TemplateSpawnRequest = Type.Object(overrides, {
  $id: "TemplateSpawnRequest",
  additionalProperties: false,
});
export type TemplateSpawnRequest = Static<typeof TemplateSpawnRequest>;
