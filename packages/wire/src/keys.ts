import { type Static, Type } from "typebox";
import { GivenDuration, OwnerId } from "./texts.ts";

export const keyNamePattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

export const keyScopes = ["read", "write", "admin"] as const;
/** What a key may be used for: to look, to change, to administer. */
export type KeyScope = (typeof keyScopes)[number];

/** Of a key that says nothing else. */
export const defaultKeyScopes: readonly KeyScope[] = ["read", "write"];

/** What logs and the audit history call those who came with no key of a name of its own. */
export const principalNames = {
  clientKey: "api_key",
  adminKey: "admin_api_key",
  anonymous: "anonymous",
  local: "local",
} as const;
/** No key may be named so. */
export const reservedKeyNames: readonly string[] = Object.values(principalNames);

const Scope = Type.Enum([...keyScopes]);
const time = (description: string) => Type.String({ format: "date-time", description });

/** `POST /admin/keys`. docs/api/authentication.md. */
export const KeyRequest = Type.Object(
  {
    name: Type.String({
      "x-rule": "core",
      pattern: keyNamePattern,
      maxLength: 128,
      description: "Unique; letters, digits, `.`, `_` and `-`, the first a letter or digit.",
      examples: ["ci"],
    }),
    owner_id: Type.Optional(
      Type.String({
        ...OwnerId,
        minLength: 1,
        description: "Confines the key to this owner's things. Left out: everybody's.",
      }),
    ),
    scopes: Type.Optional(
      Type.Array(Scope, {
        minItems: 1,
        maxItems: 3,
        uniqueItems: true,
        description:
          "What it may be used for: `read` to look, `write` to change, `admin` to administer (not with an owner). Left out: read and write.",
      }),
    ),
    ttl: Type.Optional(
      Type.String({
        ...GivenDuration,
        description: "How long it is accepted. Left out: until it is revoked.",
      }),
    ),
  },
  {
    $id: "KeyRequest",
    additionalProperties: false,
    "x-rule": "core",
    // Administration is about all owners.
    anyOf: [
      { properties: { owner_id: false } },
      { required: ["owner_id"], properties: { scopes: { items: { enum: ["read", "write"] } } } },
    ],
  },
);
export type KeyRequest = Static<typeof KeyRequest>;

/** A key, but for itself. docs/api/authentication.md. */
export const ApiKey = Type.Object(
  {
    name: Type.String(),
    owner_id: Type.Optional(Type.String({ description: "Absent: everybody's." })),
    scopes: Type.Array(Scope),
    configured: Type.Boolean({ description: "It stands in the configuration, and is revoked there." }),
    created_at: Type.Optional(time("Absent for one of the configuration.")),
    expires_at: Type.Optional(time("Absent: never.")),
    last_used_at: Type.Optional(
      time("Absent: not yet; for one of the configuration, not since the service was started."),
    ),
  },
  { $id: "ApiKey" },
);
export type ApiKey = Static<typeof ApiKey>;

/** docs/api/authentication.md. */
export const NewApiKey = Type.Object(
  {
    key: Type.String({ description: "The key. It is told this once and kept nowhere." }),
    ...ApiKey.properties,
  },
  { $id: "NewApiKey" },
);
export type NewApiKey = Static<typeof NewApiKey>;

/** `POST /tickets`. docs/api/authentication.md. */
export const TicketRequest = Type.Object(
  {
    sandbox_id: Type.String({
      maxLength: 64,
      description: "The sandbox it is for.",
      examples: ["sb-0123456789ab"],
    }),
  },
  { $id: "TicketRequest", additionalProperties: false },
);
export type TicketRequest = Static<typeof TicketRequest>;

/** docs/api/authentication.md. */
export const Ticket = Type.Object(
  {
    ticket: Type.String({ description: "Good for one WebSocket to the sandbox." }),
    sandbox_id: Type.String(),
    expires_at: time("A minute after it was made."),
  },
  { $id: "Ticket" },
);
export type Ticket = Static<typeof Ticket>;
