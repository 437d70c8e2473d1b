import { formatDuration } from "@alcove/wire";
import { deadlineAfter } from "../../platform/deadline.ts";
import type { Clock } from "../../ports/clock.ts";
import { BadRequest, Conflict, DomainError, NotFound, Unavailable } from "../../ports/errors.ts";
import type { CallOptions, PortConnection } from "../../ports/sandbox-operations.ts";
import type { SandboxRow } from "../../ports/store.ts";
import { withItsEnd } from "../sandboxes/in-sandbox.ts";
import type { RunningSandbox } from "../sandboxes/live-sandboxes.ts";
import type { SandboxService } from "../sandboxes/sandbox-service.ts";
import { PreviewCounts } from "./preview-counts.ts";
import type { PreviewLinks, PreviewTarget } from "./preview-links.ts";
import type { PreviewPlaces } from "./preview-places.ts";

/** Who may see a preview: everybody who knows its address, or who comes with a link. */
export type PreviewAccess = "public" | "signed";

export interface PreviewSettings {
  access: PreviewAccess;
  linkTtlMs: number;
  maxLinkTtlMs: number;
}

/** A port that was found, and who is to be counted for it. */
export interface OpenPort {
  readonly sandbox: RunningSandbox;
  readonly target: PreviewTarget;
}

/** How long a program may take to accept a connection. */
const dialMs = 10_000;

/** Ports of sandboxes: who may reach them, and the way in. What goes over a connection is not looked at here. */
export class Previews {
  readonly access: PreviewAccess;
  readonly links: PreviewLinks;
  readonly places: PreviewPlaces;
  readonly counts = new PreviewCounts();
  readonly #sandboxes: Pick<SandboxService, "locate" | "get">;
  readonly #clock: Pick<Clock, "now">;
  readonly #settings: PreviewSettings;
  readonly #sharesNetwork: (row: SandboxRow) => boolean;

  /** @param options.sharesNetwork whether the ports of a sandbox are the machine's. */
  constructor(options: {
    sandboxes: Pick<SandboxService, "locate" | "get">;
    links: PreviewLinks;
    places: PreviewPlaces;
    clock: Pick<Clock, "now">;
    settings: PreviewSettings;
    sharesNetwork: (row: SandboxRow) => boolean;
  }) {
    this.#sandboxes = options.sandboxes;
    this.links = options.links;
    this.places = options.places;
    this.#clock = options.clock;
    this.#settings = options.settings;
    this.access = options.settings.access;
    this.#sharesNetwork = options.sharesNetwork;
  }

  /**
   * The port of a sandbox that runs, for somebody who may do anything in it.
   * @throws NotFound; Unavailable while it starts; Conflict; BadRequest for a port that there cannot be, or a provider
   * without ports.
   */
  async find(target: PreviewTarget, options: CallOptions): Promise<OpenPort> {
    const { sandboxId, port } = target;
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new BadRequest(`port ${port} is none: ports are whole numbers from 1 to 65535`);
    const sandbox = await this.#running(sandboxId, options);
    if (!sandbox.provider.capabilities.has("ports"))
      throw new BadRequest(
        `provider "${sandbox.row.provider}" of sandbox "${sandboxId}" reaches no ports; spawn it on one with the capability ports`,
      );
    if (sandbox.row.slot !== undefined && this.#sharesNetwork(sandbox.row))
      throw new BadRequest(
        `ports cannot be reached in pool mode on this machine's network: its users share them, and port ${port} may be another user's; give the provider of sandbox "${sandboxId}" a network of its own`,
      );
    return { sandbox, target };
  }

  /** The same for everybody whom the address of a preview may reach. @throws as `find`. */
  async findPreview(target: PreviewTarget, options: CallOptions): Promise<OpenPort> {
    const found = await this.find(target, options);
    if (this.#sharesNetwork(found.sandbox.row))
      throw new BadRequest(
        `sandbox "${target.sandboxId}" shares this machine's network: its previews would open every port of the machine; give its provider a network of its own`,
      );
    return found;
  }

  /**
   * Connects to a port that was found. The signal counts until it is connected.
   * @throws DomainError `bad_gateway` when nothing listens; Unavailable; `gateway_timeout`.
   */
  async dial({ sandbox, target }: OpenPort, options: CallOptions): Promise<PortConnection> {
    using deadline = deadlineAfter(dialMs, options.signal);
    const name = `port ${target.port} of sandbox "${target.sandboxId}"`;
    try {
      return await withItsEnd(this.#sandboxes, target.sandboxId, deadline, () =>
        sandbox.operations.dialPort(target.port, { signal: deadline.signal }),
      );
    } catch (error) {
      if (options.signal.aborted) throw options.signal.reason;
      if (deadline.signal.aborted)
        throw new DomainError("gateway_timeout", `${name} took no connection within ${dialMs / 1_000} s`);
      if (error instanceof NotFound && error.details.what !== "sandbox")
        throw new DomainError(
          "bad_gateway",
          `nothing listens on ${name}; start a program that listens there, on 127.0.0.1, ::1 or every address`,
          { cause: error, retryAfterS: 1 },
        );
      throw error;
    }
  }

  /** @param ttlMs of the link; undefined: the usual. @throws BadRequest beyond `preview.max_link_ttl`. */
  linkUntil(ttlMs: number | undefined): Date {
    const { linkTtlMs, maxLinkTtlMs } = this.#settings;
    const wantedMs = ttlMs ?? Math.min(linkTtlMs, maxLinkTtlMs);
    if (wantedMs < 1_000) throw new BadRequest("ttl is shorter than a second");
    if (wantedMs > maxLinkTtlMs)
      throw new BadRequest(
        `a link lives for ${formatDuration(maxLinkTtlMs)} at most (preview.max_link_ttl), not ${formatDuration(wantedMs)}`,
      );
    return new Date(Math.floor((this.#clock.now().getTime() + wantedMs) / 1_000) * 1_000);
  }

  async #running(id: string, options: CallOptions): Promise<RunningSandbox> {
    try {
      return await this.#sandboxes.locate(id, options);
    } catch (error) {
      if (error instanceof Conflict && (await this.#isCreating(id)))
        throw new Unavailable(error.message, { cause: error, retryAfterS: 1 });
      throw error;
    }
  }

  async #isCreating(id: string): Promise<boolean> {
    try {
      return (await this.#sandboxes.get(id)).state === "creating";
    } catch {
      return false;
    }
  }
}
