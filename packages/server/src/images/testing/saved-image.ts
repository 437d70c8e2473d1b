import { createHash } from "node:crypto";
import { tarOf } from "./tar.ts";

export const sha256 = (data: Buffer) => createHash("sha256").update(data).digest("hex");

/** A `docker save` archive as an engine writes it. */
export function savedImageOf(
  layers: Buffer[],
  change: { diffIds?: string[]; env?: string[]; history?: unknown[] } = {},
): Buffer {
  const diffIds = change.diffIds ?? layers.map((layer) => `sha256:${sha256(layer)}`);
  const config = Buffer.from(
    JSON.stringify({
      config: { Env: change.env ?? ["PATH=/bin", "GREETING=a=b"], User: "app", WorkingDir: "/srv" },
      rootfs: { type: "layers", diff_ids: diffIds },
      ...(change.history && { history: change.history }),
    }),
  );
  const names = layers.map((_, index) => `layer${index}/layer.tar`);
  const manifest = [{ Config: "config.json", RepoTags: ["made:1"], Layers: names }];
  return tarOf([
    { name: "config.json", content: config },
    ...layers.map((layer, index) => ({ name: names[index] ?? "", content: layer })),
    { name: "manifest.json", content: Buffer.from(JSON.stringify(manifest)) },
  ]);
}
