import { OptionalDuration, Preview } from "@alcove/wire";
import { Type } from "typebox";
import type { Previews } from "../../core/previews/previews.ts";
import { BadRequest } from "../../ports/errors.ts";
import { optionalDuration } from "../parse.ts";
import type { Clients } from "../previews/clients.ts";
import { linkParameter } from "../previews/link-query.ts";
import { previewUrl } from "../previews/preview-url.ts";
import { type RouteApp, SandboxParams } from "./route-app.ts";

const Port = Type.Integer({
  minimum: 1,
  maximum: 65_535,
  description: "Port inside the sandbox.",
  examples: [3000],
});
export const PortParams = Type.Object({ ...SandboxParams.properties, port: Port });

/** Where ports of sandboxes are found. docs/api/previews.md. */
export function previewRoutes(
  app: RouteApp,
  options: {
    previews: Previews;
    clients: Clients;
    config: { server: { publicUrl: string; previewDomain: string } };
  },
): void {
  const { previews, clients, config } = options;

  app.route({
    method: "GET",
    url: "/sandboxes/:id/preview/:port",
    schema: {
      tags: ["sandboxes"],
      operationId: "getPreview",
      summary: "The address of a port, for a browser",
      params: PortParams,
      querystring: Type.Object({
        ttl: Type.Optional({
          ...OptionalDuration,
          description:
            "How long the link is good; default preview.link_ttl. Refused where previews are public: their addresses do not end.",
        }),
      }),
      response: { 200: Preview },
    },
    handler: async (request, reply) => {
      const { id: sandboxId, port } = request.params;
      const target = { sandboxId, port };
      const ttlMs = optionalDuration("ttl", request.query.ttl);
      const { access } = previews;
      if (access === "public" && ttlMs !== undefined)
        throw new BadRequest(
          "previews are public here (preview.access): their addresses do not end; leave ttl out, or set preview.access to signed",
        );
      const until = previews.linkUntil(ttlMs);
      // First: what names no sandbox may be no part of a host name either.
      await previews.findPreview(target, { signal: reply.callerSignal });
      const url = previewUrl(request.raw, target, { clients, server: config.server });
      if (access === "public") return { url: url.href, port, access };
      // What lets somebody in should be kept by nothing on the way.
      reply.header("cache-control", "no-store");
      url.search = `${linkParameter}=${previews.links.sign("link", target, { until, issuer: request.principal })}`;
      return { url: url.href, port, access, expires_at: until.toISOString() };
    },
  });
}
