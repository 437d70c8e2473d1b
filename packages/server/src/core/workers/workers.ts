import { NotFound } from "../../ports/errors.ts";
import { localWorkerId } from "../providers/provider-address.ts";
import type { Drain } from "./drain.ts";
import type { LocalWorker, WorkerFigures } from "./local-worker.ts";

/** The workers that are registered: this process alone, until others can join. docs/api/workers.md. */
export class Workers {
  readonly #local: LocalWorker;
  readonly #drain: Drain;

  constructor(options: { local: LocalWorker; drain: Drain }) {
    this.#local = options.local;
    this.#drain = options.drain;
  }

  list(): WorkerFigures[] {
    return this.#local.registered ? [this.#local.figures] : [];
  }

  /** @throws NotFound */
  get(id: string): WorkerFigures {
    if (id !== localWorkerId || !this.#local.registered) throw notFound(id);
    return this.#local.figures;
  }

  /** Takes it out of the registry until its next heartbeat. @throws NotFound */
  remove(id: string): void {
    this.get(id);
    this.#local.remove();
  }

  /**
   * A heartbeat in the name of a worker. Of this process it is a sign of life and how it is to be; the rest it knows by itself.
   * @throws NotFound
   */
  async heartbeat(id: string, report: { status?: WorkerFigures["status"] }): Promise<WorkerFigures> {
    if (id !== localWorkerId) throw notFound(id);
    if (report.status === "draining") await this.#drain.begin();
    if (report.status === "online") await this.#drain.end();
    this.#local.heartbeat();
    return this.#local.figures;
  }

  /**
   * It takes no new sandboxes; those it has live on. Idempotent. The service itself also while it is out of the registry: it
   * takes spawns then too.
   * @throws NotFound
   */
  async drain(id: string): Promise<WorkerFigures> {
    if (id !== localWorkerId) throw notFound(id);
    await this.#drain.begin();
    return this.#local.figures;
  }

  /** It takes new sandboxes again. Idempotent. @throws NotFound */
  async endDrain(id: string): Promise<WorkerFigures> {
    if (id !== localWorkerId) throw notFound(id);
    await this.#drain.end();
    return this.#local.figures;
  }
}

function notFound(id: string): NotFound {
  return new NotFound(
    `worker ${JSON.stringify(id)} is not registered; GET /workers lists those that are (this service is "${localWorkerId}")`,
    { what: "worker" },
  );
}
