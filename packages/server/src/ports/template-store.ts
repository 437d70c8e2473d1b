/** A named way to spawn. What a field leaves undefined was not given. */
export interface TemplateRow {
  name: string;
  description: string | undefined;
  image: string;
  provider: string | undefined;
  memoryMb: number | undefined;
  vcpus: number | undefined;
  ttlMs: number | undefined;
  metadata: Record<string, string> | undefined;
  env: Record<string, string> | undefined;
  user: string | undefined;
  workdir: string | undefined;
  network: string | undefined;
  createdAt: Date;
  updatedAt: Date;
}

export interface TemplatePage {
  rows: TemplateRow[];
  /** Whether another page follows. */
  more: boolean;
}

export interface TemplateStore {
  /** Changes nothing when the name is taken, or when there are `most` templates already. */
  create(template: TemplateRow, limit: { most: number }): Promise<"created" | "taken" | "full">;
  get(name: string): Promise<TemplateRow | undefined>;
  /**
   * By name, in the order of its bytes; short when the templates are large. @param page.afterName empty: from the first.
   */
  list(page: { afterName: string; limit: number }): Promise<TemplatePage>;
  /** Replaces all but the time of making. @returns what is kept now; undefined when there is none of the name. */
  replace(template: TemplateRow): Promise<TemplateRow | undefined>;
  /** @returns whether there was one. */
  remove(name: string): Promise<boolean>;
}
