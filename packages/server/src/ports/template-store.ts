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

export interface TemplateStore {
  /** @returns false, and changes nothing, when the name is taken. */
  create(template: TemplateRow): Promise<boolean>;
  get(name: string): Promise<TemplateRow | undefined>;
  /** By name, in the order of its bytes. @param page.afterName empty: from the first. */
  list(page: { afterName: string; limit: number }): Promise<TemplateRow[]>;
  /** Replaces all but the time of making. @returns what is kept now; undefined when there is none of the name. */
  replace(template: TemplateRow): Promise<TemplateRow | undefined>;
  /** @returns whether there was one. */
  remove(name: string): Promise<boolean>;
}
