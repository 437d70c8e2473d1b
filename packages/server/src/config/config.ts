import type { KeyScope } from "@alcove/wire";
import type { Static } from "typebox";
import type { Bytes, ConfigSchema, Duration, Secret } from "./schema.ts";

/** As a file spells it. */
type Written = Static<typeof ConfigSchema>;

/** A key of `auth.keys`. */
export interface ConfiguredKey {
  name: string;
  /** SHA-256 of the key, hexadecimal. */
  hash: string;
  /** Empty: everybody's. */
  ownerId: string;
  scopes: readonly KeyScope[];
  expiresAt: Date | null;
  /** Characters of the key, where it stands in a file. */
  length?: number;
}

type Camel<Name> = Name extends `${infer First}_${infer Rest}` ? `${First}${Capitalize<Camel<Rest>>}` : Name;

/** `disconnect_grace` is `disconnectGraceMs`; the file of a secret has no name: it has been read. */
type CodeName<Group, Name extends keyof Group> = Name extends `${infer Base}_file`
  ? Group[Base & keyof Group] extends Secret
    ? never
    : Camel<Name>
  : NonNullable<Group[Name]> extends Duration
    ? `${Camel<Name> & string}Ms`
    : NonNullable<Group[Name]> extends Bytes
      ? Name extends `${string}_bytes`
        ? Camel<Name>
        : `${Camel<Name> & string}Bytes`
      : Camel<Name>;

type CodeValue<Value> = Value extends Duration | Bytes
  ? number
  : Value extends Secret
    ? string
    : Value extends string | number | boolean | readonly unknown[] | undefined
      ? Value
      : string extends keyof Value
        ? Value
        : CodeGroup<Value>;

type CodeGroup<Group> = {
  [Name in keyof Group & string as CodeName<Group, Name> & string]: undefined extends Group[Name]
    ? Group[Name] | undefined
    : CodeValue<Group[Name]>;
};

/** What the schema says, in the words of the code. */
export type SchemaConfig = CodeGroup<Written>;

/**
 * The configuration as the server uses it: names in camel case, durations in milliseconds (`…Ms`), sizes in bytes
 * (`…Bytes`), secrets read, paths absolute. Keys, choices and defaults stand in `schema.ts` alone.
 */
export type Config = Omit<SchemaConfig, "auth" | "logging"> & {
  auth: Omit<SchemaConfig["auth"], "enabled" | "keys"> & { enabled: boolean; keys: readonly ConfiguredKey[] };
  logging: Omit<SchemaConfig["logging"], "format"> & {
    format: NonNullable<SchemaConfig["logging"]["format"]>;
  };
};

export type DockerConfig = Config["providers"]["docker"];
