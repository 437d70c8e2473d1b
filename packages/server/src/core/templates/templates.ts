import { templateNamePattern } from "@alcove/wire";
import {
  BadRequest,
  type Clock,
  Conflict,
  type NetworkMode,
  NotFound,
  ResourceLimit,
  type TemplatePage,
  type TemplateRow,
  type TemplateStore,
} from "../../ports/index.ts";
import { checkSpawn, type SpawnInput } from "../sandboxes/spawn-plan.ts";

/** What a template says; what was not given is absent. */
export type TemplateInput = Omit<SpawnInput, "template" | "ownerId" | "name" | "image"> & {
  image: string;
  description?: string;
};

const mostTemplates = 1_000;
const namePattern = new RegExp(templateNamePattern);

/** Named ways to spawn. docs/api/templates.md. */
export class Templates {
  readonly #store: TemplateStore;
  readonly #clock: Clock;

  constructor(options: { store: TemplateStore; clock: Clock }) {
    this.#store = options.store;
    this.#clock = options.clock;
  }

  /** @throws BadRequest naming the field; Conflict when the name is taken. */
  async create(name: string, input: TemplateInput): Promise<TemplateRow> {
    if (!namePattern.test(name)) {
      throw new BadRequest(
        `name ${JSON.stringify(name.slice(0, 80))} must be 1 to 128 letters, digits, ".", "_" or "-", the first a letter or digit`,
      );
    }
    const row = this.#row(name, input);
    switch (await this.#store.create(row, { most: mostTemplates })) {
      case "created":
        return row;
      case "taken":
        throw new Conflict(`template "${name}" exists already; PUT replaces it`);
      case "full":
        throw new ResourceLimit(`this service keeps ${mostTemplates} templates; remove one that is not used`);
    }
  }

  /** @throws BadRequest naming the field; NotFound. */
  async replace(name: string, input: TemplateInput): Promise<TemplateRow> {
    const row = await this.#store.replace(this.#row(name, input));
    if (row === undefined) throw noTemplate(name);
    return row;
  }

  async get(name: string): Promise<TemplateRow> {
    const row = await this.#store.get(name);
    if (row === undefined) throw noTemplate(name);
    return row;
  }

  list(page: { afterName: string; limit: number }): Promise<TemplatePage> {
    return this.#store.list(page);
  }

  async remove(name: string): Promise<void> {
    if (!(await this.#store.remove(name))) throw noTemplate(name);
  }

  /**
   * @returns the request with its template's fields below its own; labels and environment are joined key by key, and the
   *   label `template` names it. A request without a template is returned as it is.
   * @throws NotFound when there is no such template.
   */
  async expand(input: SpawnInput): Promise<SpawnInput> {
    const { template: name, ...own } = input;
    if (name === undefined) return own;
    const row = await this.get(name);
    const below: Total<TemplateFields> = {
      image: row.image,
      provider: row.provider,
      memoryMb: row.memoryMb,
      vcpus: row.vcpus,
      ttlMs: row.ttlMs,
      user: row.user,
      workdir: row.workdir,
      // Checked when it was saved.
      network: row.network as NetworkMode | undefined,
    };
    return {
      ...Object.fromEntries(Object.entries(below).filter(([, value]) => value !== undefined)),
      ...own,
      metadata: { ...row.metadata, ...own.metadata, template: name },
      env: { ...row.env, ...own.env },
    };
  }

  #row(name: string, input: TemplateInput): TemplateRow {
    checkSpawn(input);
    const now = this.#clock.now();
    const { description, image, provider, memoryMb, vcpus, ttlMs, metadata, env, ...rest } = input;
    const { user, workdir, network, ...none } = rest;
    none satisfies Record<string, never>;
    return {
      name,
      description,
      image,
      provider,
      memoryMb,
      vcpus,
      ttlMs,
      metadata,
      env,
      user,
      workdir,
      network,
      createdAt: now,
      updatedAt: now,
    };
  }
}

type TemplateFields = Omit<SpawnInput, "template" | "ownerId" | "name" | "metadata" | "env">;
type Total<T> = { [K in keyof Required<T>]: T[K] | undefined };

function noTemplate(name: string): NotFound {
  return new NotFound(`template ${JSON.stringify(name.slice(0, 128))} does not exist`, { what: "template" });
}
