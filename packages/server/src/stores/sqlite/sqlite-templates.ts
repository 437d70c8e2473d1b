import type { DatabaseSync, StatementSync } from "node:sqlite";
import type { TemplatePage, TemplateRow, TemplateStore } from "../../ports/template-store.ts";
import type { GroupCommit } from "./group-commit.ts";

/** What the templates of one page may say together, characters; one template is always shown. */
const longestPage = 262_144;

interface TemplateRecord {
  name: string;
  fields: string;
  created_at: number;
  updated_at: number;
}

type Fields = Omit<TemplateRow, "name" | "createdAt" | "updatedAt">;

/** The table `templates`. What a template says is one JSON text: nothing is looked up by it. */
export class SqliteTemplates implements TemplateStore {
  readonly #commit: GroupCommit;
  readonly #create: StatementSync;
  readonly #count: StatementSync;
  readonly #get: StatementSync;
  readonly #list: StatementSync;
  readonly #replace: StatementSync;
  readonly #remove: StatementSync;

  constructor(db: DatabaseSync, commit: GroupCommit) {
    this.#commit = commit;
    this.#create = db.prepare(
      "INSERT INTO templates (name, fields, created_at, updated_at) VALUES (?, ?, ?, ?)",
    );
    this.#count = db.prepare("SELECT count(*) AS count FROM templates");
    this.#get = db.prepare("SELECT * FROM templates WHERE name = ?");
    this.#list = db.prepare("SELECT * FROM templates WHERE name > ? ORDER BY name LIMIT ?");
    this.#replace = db.prepare("UPDATE templates SET fields = ?, updated_at = ? WHERE name = ? RETURNING *");
    this.#remove = db.prepare("DELETE FROM templates WHERE name = ?");
  }

  async create(template: TemplateRow, { most }: { most: number }): Promise<"created" | "taken" | "full"> {
    const { name, createdAt, updatedAt, ...fields } = template;
    return this.#commit.write(() => {
      this.#commit.refuseNew();
      if (this.#get.get(name) !== undefined) return "taken";
      if ((this.#count.get() as { count: number }).count >= most) return "full";
      this.#create.run(name, JSON.stringify(fields), createdAt.getTime(), updatedAt.getTime());
      return "created";
    });
  }

  async get(name: string): Promise<TemplateRow | undefined> {
    const record = this.#get.get(name) as TemplateRecord | undefined;
    return record === undefined ? undefined : fromRecord(record);
  }

  async list(page: { afterName: string; limit: number }): Promise<TemplatePage> {
    const rows: TemplateRow[] = [];
    let characters = 0;
    for (const row of this.#list.iterate(page.afterName, page.limit + 1)) {
      const record = row as unknown as TemplateRecord;
      characters += record.fields.length;
      if (rows.length === page.limit || (rows.length > 0 && characters > longestPage))
        return { rows, more: true };
      rows.push(fromRecord(record));
    }
    return { rows, more: false };
  }

  async replace(template: TemplateRow): Promise<TemplateRow | undefined> {
    const { name, createdAt: _stays, updatedAt, ...fields } = template;
    const record = await this.#commit.write(() => {
      this.#commit.refuseNew();
      return this.#replace.get(JSON.stringify(fields), updatedAt.getTime(), name) as unknown as
        | TemplateRecord
        | undefined;
    });
    return record === undefined ? undefined : fromRecord(record);
  }

  async remove(name: string): Promise<boolean> {
    const { changes } = await this.#commit.write(() => this.#remove.run(name));
    return changes > 0;
  }
}

function fromRecord(record: TemplateRecord): TemplateRow {
  const fields = JSON.parse(record.fields) as Partial<Fields> & Pick<Fields, "image">;
  return {
    name: record.name,
    description: fields.description,
    image: fields.image,
    provider: fields.provider,
    memoryMb: fields.memoryMb,
    vcpus: fields.vcpus,
    ttlMs: fields.ttlMs,
    metadata: fields.metadata,
    env: fields.env,
    user: fields.user,
    workdir: fields.workdir,
    network: fields.network,
    createdAt: new Date(record.created_at),
    updatedAt: new Date(record.updated_at),
  };
}
