import type { Worker, WorkerReport } from "@alcove/wire";
import type { Transport } from "./transport.ts";

interface WorkerCallOptions {
  signal?: AbortSignal;
}

/** Workers: who runs sandboxes; `local` is the service itself. Methods throw AlcoveError. */
export class WorkersClient {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  async list(options: WorkerCallOptions = {}): Promise<Worker[]> {
    return this.#transport.quick("GET", "/workers", options);
  }

  async get(id: string, options: WorkerCallOptions = {}): Promise<Worker> {
    return this.#transport.quick("GET", `/workers/${encodeURIComponent(id)}`, options);
  }

  /** It takes no new sandboxes, those it has live on. Takes an admin key. */
  async drain(id: string, options: WorkerCallOptions = {}): Promise<Worker> {
    return this.#transport.quick("POST", `${administered(id)}/drain`, options);
  }

  /** It takes new sandboxes again. Takes an admin key. */
  async endDrain(id: string, options: WorkerCallOptions = {}): Promise<Worker> {
    return this.#transport.quick("DELETE", `${administered(id)}/drain`, options);
  }

  /** A heartbeat in its name, to repair the registry. Takes an admin key. */
  async report(id: string, report: WorkerReport, options: WorkerCallOptions = {}): Promise<Worker> {
    return this.#transport.quick("POST", `${administered(id)}/heartbeat`, options, report);
  }

  /** Takes it out of the registry until its next heartbeat. Takes an admin key. */
  async remove(id: string, options: WorkerCallOptions = {}): Promise<void> {
    await this.#transport.quick("DELETE", administered(id), options);
  }
}

function administered(id: string): string {
  return `/admin/workers/${encodeURIComponent(id)}`;
}
