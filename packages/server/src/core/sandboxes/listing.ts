import { type SandboxState, sandboxStates } from "@alcove/wire";
import { BadRequest } from "../../ports/errors.ts";
import type { SandboxId } from "../../ports/ids.ts";
import type { SandboxFilter, SandboxPosition, SandboxRow, Store } from "../../ports/store.ts";
import { parseOwnerId } from "../owners.ts";
import { liveStates } from "./states.ts";

export interface ListRequest {
  /** One state or several, comma-separated; absent: all but destroyed. */
  state?: string;
  ownerId?: string;
  provider?: string;
  metadata?: Readonly<Record<string, string>>;
  limit: number;
  /** As `nextCursor` of the page before. A page may be short although another follows. */
  cursor?: string;
}

export interface ListPage {
  items: SandboxRow[];
  nextCursor?: string;
}

export const largestPage = 1_000;

/** Reads one page, newest first. @throws BadRequest for a limit, state or cursor that makes no sense. */
export async function listSandboxes(store: Store, request: ListRequest): Promise<ListPage> {
  if (!Number.isInteger(request.limit) || request.limit < 1 || request.limit > largestPage) {
    throw new BadRequest(`limit must be a whole number from 1 to ${largestPage}, not ${request.limit}`);
  }
  const ownerId = parseOwnerId(request.ownerId);
  const filter: SandboxFilter = {
    states: parseStates(request.state),
    limit: request.limit,
    ...(ownerId === "" ? {} : { ownerId }),
    ...(request.provider ? { provider: request.provider } : {}),
    ...(request.metadata === undefined ? {} : { metadata: request.metadata }),
    ...(request.cursor ? { after: parseCursor(request.cursor) } : {}),
  };
  const { rows, next } = await store.sandboxes.list(filter);
  return next === undefined ? { items: rows } : { items: rows, nextCursor: formatCursor(next) };
}

function parseStates(text: string | undefined): readonly SandboxState[] {
  if (text === undefined || text === "") return liveStates;
  return text.split(",").map((part) => {
    const state = sandboxStates.find((known) => known === part.trim());
    if (state === undefined) {
      throw new BadRequest(`state "${part.trim()}" is not known; known are ${sandboxStates.join(", ")}`);
    }
    return state;
  });
}

function formatCursor(row: SandboxPosition): string {
  return `${row.createdAt.getTime()}.${row.id}`;
}

function parseCursor(cursor: string): SandboxPosition {
  const match = /^(\d{1,15})\.(sb-[a-z0-9]{1,32})$/.exec(cursor);
  if (match?.[1] === undefined || match[2] === undefined) {
    throw new BadRequest("cursor is not one this service gave; start without a cursor");
  }
  return { createdAt: new Date(Number(match[1])), id: match[2] as SandboxId };
}
