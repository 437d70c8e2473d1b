import { type Static, Type } from "typebox";

/** An address at which a browser finds a port of a sandbox. docs/api/previews.md. */
export const Preview = Type.Object(
  {
    url: Type.String({ description: "Open it in a browser." }),
    port: Type.Integer(),
    access: Type.Enum(["public", "signed"], {
      description: "Whether whoever knows the address may see it, or who has this link.",
    }),
    expires_at: Type.Optional(
      Type.String({ format: "date-time", description: "When the link ends; only of signed ones." }),
    ),
  },
  { $id: "Preview" },
);
export type Preview = Static<typeof Preview>;
