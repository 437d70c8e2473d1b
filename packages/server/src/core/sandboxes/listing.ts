import { mostMetadataBytes, type SandboxState, sandboxStates } from "@alcove/wire";
import { BadRequest } from "../../ports/errors.ts";
import type { SandboxId } from "../../ports/ids.ts";
import type { ListedSandbox, SandboxFilter, SandboxPosition, Store } from "../../ports/store.ts";
import type { Answer } from "../answers/answer-budget.ts";
import { parseOwnerId } from "../owners.ts";
import { checkName } from "./spawn-plan.ts";
import { liveStates } from "./states.ts";

export interface ListRequest {
  /** One state or several, comma-separated; absent: all but destroyed. */
  state?: string;
  ownerId?: string;
  name?: string;
  provider?: string;
  metadata?: Readonly<Record<string, string>>;
  limit: number;
  /** As `nextCursor` of the page before. A page may be short although another follows. */
  cursor?: string;
}

export type ListOptions =
  | { answer?: never }
  | {
      answer: Answer;
      signal: AbortSignal;
      /** Waits for the turn in which the page may be read, once its memory is there. */
      turn: () => Promise<void>;
    };

export interface ListPage {
  items: ListedSandbox[];
  nextCursor?: string;
}

export const largestPage = 1_000;
/**
 * Memory of one page while it is read and sent: labels (256 KiB and those of the last row, see the store's promise) as text,
 * as objects and as JSON in two copies, and what else is known of each sandbox.
 */
const bytesPerLabelByte = 4;
const bytesPerSandbox = 2_048;
const mostLabelBytes = 262_144 + mostMetadataBytes;
/** What no page takes more than. */
export const largestPageBytes = pageBytes(mostLabelBytes, largestPage);
/** Labels one request may filter by: each is looked for in every row. */
export const mostWantedLabels = 16;

/** Reads one page, newest first. @throws BadRequest for a limit, state or cursor that makes no sense, and too many labels. */
export async function listSandboxes(
  store: Store,
  request: ListRequest,
  options: ListOptions = {},
): Promise<ListPage> {
  if (!Number.isInteger(request.limit) || request.limit < 1 || request.limit > largestPage) {
    throw new BadRequest(`limit must be a whole number from 1 to ${largestPage}, not ${request.limit}`);
  }
  const wanted = Object.keys(request.metadata ?? {}).length;
  if (wanted > mostWantedLabels) {
    throw new BadRequest(`a list is filtered by at most ${mostWantedLabels} labels, not ${wanted}`);
  }
  const ownerId = parseOwnerId(request.ownerId);
  const filter: SandboxFilter = {
    states: parseStates(request.state),
    limit: request.limit,
    ...(ownerId === "" ? {} : { ownerId }),
    ...(request.name ? { name: checkName(request.name) } : {}),
    ...(request.provider ? { provider: request.provider } : {}),
    ...(request.metadata === undefined ? {} : { metadata: request.metadata }),
    ...(request.cursor ? { after: parseCursor(request.cursor) } : {}),
  };
  const { answer } = options;
  if (options.answer !== undefined) {
    const most = pageBytes(Math.min(request.limit * mostMetadataBytes, mostLabelBytes), request.limit);
    await options.answer.grow(ownerId, most, options.signal);
    await options.turn();
    options.signal.throwIfAborted();
  }
  const { rows, next } = await store.sandboxes.list(filter);
  answer?.shrink(pageBytes(labelBytes(rows), rows.length));
  return next === undefined ? { items: rows } : { items: rows, nextCursor: formatCursor(next) };
}

function pageBytes(labels: number, sandboxes: number): number {
  return labels * bytesPerLabelByte + sandboxes * bytesPerSandbox;
}

function labelBytes(rows: readonly ListedSandbox[]): number {
  let bytes = 0;
  for (const { metadata } of rows)
    for (const [key, value] of Object.entries(metadata)) bytes += key.length + value.length;
  return bytes;
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

/** A cursor that this service gave: when the last sandbox of the page was made, and which it is. */
export const cursorPattern = "(\\d{1,15})\\.(sb-[a-z0-9]{1,32})";
const wholeCursor = new RegExp(`^${cursorPattern}$`);

function formatCursor(row: SandboxPosition): string {
  return `${row.createdAt.getTime()}.${row.id}`;
}

function parseCursor(cursor: string): SandboxPosition {
  const match = wholeCursor.exec(cursor);
  if (match?.[1] === undefined || match[2] === undefined) {
    throw new BadRequest("cursor is not one this service gave; start without a cursor");
  }
  return { createdAt: new Date(Number(match[1])), id: match[2] as SandboxId };
}
