import { isUtf8 } from "node:buffer";
import type { KeyScope } from "@alcove/wire";
import type { FastifyRequest } from "fastify";
import type { Principal } from "../core/keys/principal.ts";
import { parseOwnerId } from "../core/owners.ts";
import { sandboxNotFound } from "../core/sandboxes/live-sandboxes.ts";
import { DomainError, Forbidden, NotFound } from "../ports/errors.ts";
import { given } from "./parse.ts";

declare module "fastify" {
  interface FastifyContextConfig {
    access?: Access;
  }
  interface FastifyRequest {
    /** In pool mode: whom X-User-ID names. The request has to do with that user's sandboxes alone. */
    tenant: string | undefined;
  }
}

/** What a key must be good for, and how far one that is bound to an owner reaches. docs/api/authentication.md. */
export interface Access {
  readonly scope: KeyScope;
  /**
   * - `sandbox`: the sandbox in the path must be the owner's; another's looks like one that does not exist.
   * - `owner`: the owner in the path must be this one; another looks like one that does not exist.
   * - `own`: the handler looks at, makes or changes the owner's alone.
   * - `shared`: the same for everybody; where sandboxes are counted, the owner's.
   * - `all`: refused, because it is about all owners.
   */
  readonly bound: "sandbox" | "owner" | "own" | "shared" | "all";
  /** Told in the audit history, whatever comes of it. */
  readonly audited?: true;
}

const reads = (bound: Access["bound"]): Access => ({ scope: "read", bound });
const writes = (bound: Access["bound"]): Access => ({ scope: "write", bound });
/** Below `/admin/` alone. */
const administers: Access = { scope: "admin", bound: "all", audited: true };
const audited = (access: Access): Access => ({ ...access, audited: true });

/** By operation id. An operation that is not here and not open cannot be registered. */
export const accessTable: Readonly<Record<string, Access>> = {
  spawnSandbox: writes("own"),
  acquireSandbox: writes("own"),
  checkAdmission: reads("own"),
  listSandboxes: reads("own"),
  listSandboxStats: reads("own"),
  pruneSandboxes: writes("own"),
  getSandbox: reads("sandbox"),
  destroySandbox: writes("sandbox"),
  extendSandbox: writes("sandbox"),
  getSandboxLogs: reads("sandbox"),
  getSandboxStats: reads("sandbox"),
  exec: writes("sandbox"),
  execWebSocket: writes("sandbox"),
  startExec: writes("sandbox"),
  listExecs: reads("sandbox"),
  getPreview: writes("sandbox"),
  openTunnel: writes("sandbox"),
  requestPort: writes("sandbox"),
  getExec: reads("sandbox"),
  killExec: writes("sandbox"),
  getExecOutput: reads("sandbox"),
  signalExec: writes("sandbox"),
  writeExecStdin: writes("sandbox"),
  writeFile: writes("sandbox"),
  readFile: reads("sandbox"),
  uploadFile: writes("sandbox"),
  deleteFile: writes("sandbox"),
  readArchive: reads("sandbox"),
  writeArchive: writes("sandbox"),
  chmodFile: writes("sandbox"),
  globFiles: reads("sandbox"),
  listFiles: reads("sandbox"),
  moveFile: writes("sandbox"),
  statFile: reads("sandbox"),
  watchFiles: reads("sandbox"),
  streamEvents: reads("own"),
  getPoolStatus: reads("shared"),
  listSnapshots: reads("shared"),
  getMetrics: reads("all"),
  getPrometheusMetrics: reads("all"),
  getDiagnostics: reads("all"),
  listProviders: reads("shared"),
  getProvider: reads("shared"),
  testProviders: writes("all"),
  createTemplate: audited(writes("all")),
  listTemplates: reads("shared"),
  getTemplate: reads("shared"),
  replaceTemplate: audited(writes("all")),
  deleteTemplate: audited(writes("all")),
  spawnFromTemplate: writes("own"),
  listQuotas: reads("all"),
  getQuotaSummary: reads("all"),
  getQuota: reads("owner"),
  getQuotaUsage: reads("owner"),
  saveQuota: audited(writes("all")),
  deleteQuota: audited(writes("all")),
  listWorkers: reads("all"),
  getWorker: reads("all"),
  deleteWorker: administers,
  reportWorker: administers,
  drainWorker: administers,
  endDrainOfWorker: administers,
  listAudit: administers,
  createKey: administers,
  listKeys: administers,
  revokeKey: administers,
  createTicket: writes("own"),
};

/** @returns the operation that one below `/admin/` is another way to: `adminSaveQuota` is `saveQuota`. */
export function ownOperation(operationId: string): string {
  return operationId.replace(/^admin([A-Z])/, (_, first: string) => first.toLowerCase());
}

/** Routes below `/admin/` are the same operations for those who administer, and audited whatever they do. */
export function accessOf(route: { url: string; operationId: string | undefined }): Access {
  const { url, operationId = "" } = route;
  const admin = url.startsWith("/api/v1/admin/");
  const name = ownOperation(operationId);
  const access = Object.hasOwn(accessTable, name) ? accessTable[name] : undefined;
  if (access === undefined)
    throw new Error(`${url}: operation "${operationId}" has no row in the table of access (api/access.ts)`);
  refuseReach(url, operationId, access.bound);
  return admin ? audited({ scope: "admin", bound: access.bound }) : access;
}

/** What a path names decides how far the key of an owner may reach there, whatever its row says. */
function refuseReach(url: string, operationId: string, bound: Access["bound"]): void {
  const wanted: readonly Access["bound"][] | undefined = url.includes("/sandboxes/:id")
    ? ["sandbox"]
    : url.includes("/:ownerID")
      ? ["owner", "all"]
      : undefined;
  if (wanted?.includes(bound) === false)
    throw new Error(
      `${url}: the row of operation "${operationId}" in the table of access says "${bound}"; its path asks for ${wanted.map((each) => `"${each}"`).join(" or ")}`,
    );
}

/**
 * Refuses what a principal may not do; another owner's things look like things that do not exist.
 * @throws DomainError unauthorized (administration without a key for it), Forbidden, NotFound.
 */
export async function checkAccess(
  request: FastifyRequest,
  ownerOf: (sandboxId: string) => Promise<string | undefined>,
  options: { pooled: boolean },
): Promise<void> {
  const { access, open } = request.routeOptions.config;
  const { principal } = request;
  if (access === undefined) {
    if (open === true) return;
    throw new Forbidden(`${request.method} ${request.routeOptions.url} is open to nobody`);
  }
  refuseScope(principal, access.scope);
  const params = request.params as Readonly<Record<string, string>>;
  if (options.pooled && (access.bound === "sandbox" || access.bound === "own")) {
    request.tenant = userIdOf(request);
    const strangers = access.bound === "sandbox" && request.tenant !== undefined;
    if (strangers && (await ownerOf(params.id ?? "")) !== request.tenant)
      throw sandboxNotFound(params.id ?? "");
  }
  if (principal.ownerId === undefined) return;
  ownerFor(principal, userIdOf(request));
  if (access.bound === "all") {
    throw new Forbidden(
      `key "${principal.name}" is bound to owner "${principal.ownerId}", and this is about all owners`,
    );
  }
  if (access.bound === "owner" && params.ownerID?.trim() !== principal.ownerId) {
    throw notForBoundKey(principal.name, principal.ownerId, params.ownerID ?? "");
  }
  if (access.bound === "sandbox" && (await ownerOf(params.id ?? "")) !== principal.ownerId) {
    throw sandboxNotFound(params.id ?? "");
  }
}

/** The same for every other owner: whether there is one shows to none. */
function notForBoundKey(key: string, ownerId: string, asked: string): NotFound {
  return new NotFound(
    `owner "${asked}" has no quota that key "${key}" may see: it is bound to owner "${ownerId}"`,
    { what: "quota" },
  );
}

/** The X-User-ID header, undefined when absent or empty. Node reads headers byte by byte; owners may be any UTF-8, or Latin-1. */
export function userIdOf(request: FastifyRequest): string | undefined {
  const header = request.headers["x-user-id"];
  if (typeof header !== "string") return undefined;
  const bytes = Buffer.from(header, "latin1");
  return given(parseOwnerId(isUtf8(bytes) ? bytes.toString("utf8") : header));
}

/** Whom the header, the path or the body names; undefined when they name nobody, or nobody that there can be. */
export function namedOwner(request: FastifyRequest): string | undefined {
  const { ownerID } = (request.params ?? {}) as { ownerID?: string };
  const body = request.body as { owner_id?: unknown } | null | undefined;
  try {
    const named = userIdOf(request) ?? ownerID ?? body?.owner_id;
    return typeof named === "string" ? given(parseOwnerId(named)) : undefined;
  } catch {
    return undefined;
  }
}

/** Whose things a request is confined to; undefined: everybody's. */
export function confinedTo(request: FastifyRequest): string | undefined {
  return request.principal.ownerId ?? request.tenant;
}

/** Whose things are wanted. @throws Forbidden for those of another than the request is confined to. */
export function wantedOwner(request: FastifyRequest, wanted: string | undefined): string | undefined {
  const { tenant } = request;
  const ownerId = ownerFor(request.principal, wanted);
  if (tenant === undefined || ownerId === undefined || ownerId === tenant) return ownerId ?? tenant;
  throw new Forbidden(`X-User-ID is "${tenant}", and this asks for what is "${ownerId}"'s`);
}

function refuseScope(principal: Principal, scope: KeyScope): void {
  if (principal.scopes.has(scope)) return;
  // Told as a wrong key, because that is what clients of the administration know.
  if (scope === "admin") throw new DomainError("unauthorized", "this takes the admin key");
  throw new Forbidden(`key "${principal.name}" has no scope ${scope}`);
}

/** Whose a new or wanted thing is. @throws Forbidden when a bound key claims another owner. */
export function ownerFor(principal: Principal, claimed: string | undefined): string | undefined {
  const { ownerId } = principal;
  if (ownerId === undefined) return claimed;
  if (claimed !== undefined && claimed !== ownerId) {
    throw new Forbidden(
      `key "${principal.name}" is bound to owner "${ownerId}" and cannot act for "${claimed}"`,
    );
  }
  return ownerId;
}
