import { createHash } from "node:crypto";
import { lstat, readFile, realpath } from "node:fs/promises";
import path from "node:path";
import { type Static, Type } from "typebox";
import { Value } from "typebox/value";
import { beyondBounds } from "../platform/bounded-json.ts";
import { BadRequest, NotFound } from "../ports/errors.ts";
import type { ImageConfig } from "../ports/image-store.ts";
import { normaliseImageName } from "./image-name.ts";

const largestJson = 4 * 1_048_576;
/** It is parsed in the service's own process. An image with a history of hundreds of steps has a few thousand values. */
const jsonBounds = { maxDepth: 64, maxParts: 32_768 };
/** Beside what a spawn asks for it has room in what a launch is told. */
const mostEnvBytes = 262_144;
const mostVariables = 4_096;
const deepestIndex = 3;
/** Twice what engines make. */
const mostLayers = 256;

const ImageConfigFile = Type.Object({
  config: Type.Optional(
    Type.Union([
      Type.Null(),
      Type.Object({
        Env: Type.Optional(Type.Union([Type.Array(Type.String()), Type.Null()])),
        User: Type.Optional(Type.String({ maxLength: 256 })),
        WorkingDir: Type.Optional(Type.String({ maxLength: 4_096 })),
      }),
    ]),
  ),
  rootfs: Type.Object({ diff_ids: Type.Array(Type.String({ pattern: "^sha256:[0-9a-f]{64}$" })) }),
});
const SaveManifest = Type.Array(
  Type.Object({
    Config: Type.String(),
    RepoTags: Type.Optional(Type.Union([Type.Array(Type.String()), Type.Null()])),
    Layers: Type.Array(Type.String()),
  }),
  { minItems: 1 },
);
const Descriptor = Type.Object({
  mediaType: Type.Optional(Type.String()),
  digest: Type.String({ pattern: "^sha256:[0-9a-f]{64}$" }),
  platform: Type.Optional(Type.Object({ architecture: Type.String(), os: Type.String() })),
});
const OciIndex = Type.Object({ manifests: Type.Array(Descriptor) });
const OciManifest = Type.Object({ config: Descriptor, layers: Type.Array(Descriptor) });

/** An image inside an unpacked `docker save` archive or OCI layout. */
export interface ArchivedImage {
  /** Of its configuration, which names its layers. */
  digest: string;
  config: ImageConfig;
  layers: { file: string; diffId: string }[];
}

/**
 * Finds the image in a directory, or undefined when the directory holds none: then it is a root file system.
 * @param options.name tells which one, when there are several.
 */
export async function findArchivedImage(
  directory: string,
  options: { name: string },
): Promise<ArchivedImage | undefined> {
  // A root file system may hold files of these names: its own are none of an archive.
  if (await isFile(directory, "manifest.json")) {
    const manifest = jsonOrNone(await readInside(directory, "manifest.json"));
    if (Value.Check(SaveManifest, manifest)) return await savedImage(directory, manifest, options.name);
  }
  if ((await isFile(directory, "index.json")) && (await isFile(directory, "oci-layout"))) {
    const index = jsonOrNone(await readInside(directory, "index.json"));
    if (Value.Check(OciIndex, index)) return await ociImage(directory, index, 0);
  }
  return undefined;
}

async function savedImage(
  directory: string,
  images: Static<typeof SaveManifest>,
  name: string,
): Promise<ArchivedImage> {
  const tagged = (tags: readonly string[] | null | undefined) => (tags ?? []).map(normaliseImageName);
  const chosen =
    images.length === 1 ? images[0] : images.find((image) => tagged(image.RepoTags).includes(name));
  if (chosen === undefined)
    throw new BadRequest(
      `the archive holds ${images.length} images and none of them is ${name}: ${images.flatMap((image) => tagged(image.RepoTags)).join(", ")}`,
    );
  return await archivedImage(directory, chosen.Config, chosen.Layers);
}

async function ociImage(
  directory: string,
  index: Static<typeof OciIndex>,
  depth: number,
): Promise<ArchivedImage> {
  const architecture = process.arch === "x64" ? "amd64" : process.arch;
  const { manifests } = index;
  const chosen =
    manifests.length === 1
      ? manifests[0]
      : manifests.find(({ platform }) => platform?.os === "linux" && platform.architecture === architecture);
  if (chosen === undefined) throw new NotFound(`the archive holds no image for linux/${architecture}`);
  const file = blob(chosen.digest);
  const manifest: unknown = parseJson(await readInside(directory, file), file);
  if (Value.Check(OciManifest, manifest))
    return await archivedImage(
      directory,
      blob(manifest.config.digest),
      manifest.layers.map((layer) => blob(layer.digest)),
    );
  if (depth < deepestIndex && Value.Check(OciIndex, manifest))
    return await ociImage(directory, manifest, depth + 1);
  throw new BadRequest(`${file} in the archive is no image manifest`);
}

async function archivedImage(
  directory: string,
  configFile: string,
  layerFiles: string[],
): Promise<ArchivedImage> {
  const text = await readInside(directory, configFile);
  const parsed: unknown = parseJson(text, configFile);
  if (!Value.Check(ImageConfigFile, parsed))
    throw new BadRequest(`${configFile} in the archive is no image configuration`);
  const diffIds = parsed.rootfs.diff_ids;
  if (diffIds.length !== layerFiles.length)
    throw new BadRequest(
      `the archive holds ${layerFiles.length} layers and its image wants ${diffIds.length}`,
    );
  if (diffIds.length > mostLayers)
    throw new BadRequest(`the image has ${diffIds.length} layers; ${mostLayers} are allowed`);
  const layers = [];
  for (const [index, file] of layerFiles.entries())
    layers.push({ file: await fileInside(directory, file), diffId: diffIds[index] ?? "" });
  return {
    digest: `sha256:${createHash("sha256").update(text).digest("hex")}`,
    config: configOf(parsed),
    layers,
  };
}

function configOf(file: Static<typeof ImageConfigFile>): ImageConfig {
  const env: Record<string, string> = {};
  const variables = file.config?.Env ?? [];
  const envBytes = Buffer.byteLength(JSON.stringify(variables));
  if (variables.length > mostVariables || envBytes > mostEnvBytes)
    throw new BadRequest(
      `the image sets ${variables.length} variables of ${envBytes} bytes as JSON; ${mostVariables} of ${mostEnvBytes} are allowed`,
    );
  for (const entry of variables) {
    const equals = entry.indexOf("=");
    if (equals > 0) env[entry.slice(0, equals)] = entry.slice(equals + 1);
  }
  const user = file.config?.User ?? "";
  const workdir = file.config?.WorkingDir ?? "";
  return { env, ...(user === "" ? {} : { user }), ...(workdir === "" ? {} : { workdir }) };
}

const blob = (digest: string) => `blobs/${digest.replace(":", "/")}`;

async function isFile(directory: string, name: string): Promise<boolean> {
  return await lstat(path.join(directory, name)).then((found) => found.isFile(), isMissing);
}

function isMissing(error: unknown): false {
  if (error instanceof Error && "code" in error && error.code === "ENOENT") return false;
  throw error;
}

/** @throws BadRequest for what lies outside of the archive, also through symlinks, which `docker save` uses inside. */
async function fileInside(directory: string, name: string): Promise<string> {
  const base = await realpath(directory);
  const real = await realpath(path.join(base, name)).catch(() => undefined);
  if (real === undefined) throw new BadRequest(`the archive is incomplete: ${name} is missing`);
  if (!real.startsWith(`${base}/`) || !(await lstat(real)).isFile())
    throw new BadRequest(`the archive names ${JSON.stringify(name)}, which is no file of its own`);
  return real;
}

async function readInside(directory: string, name: string): Promise<Buffer> {
  const file = await fileInside(directory, name);
  const { size } = await lstat(file);
  if (size > largestJson)
    throw new BadRequest(`${name} in the archive has ${size} bytes; ${largestJson} are allowed`);
  return await readFile(file);
}

function jsonOrNone(text: Buffer): unknown {
  if (beyondBounds(text, jsonBounds) !== undefined) return undefined;
  try {
    return JSON.parse(text.toString("utf8"));
  } catch {
    return undefined;
  }
}

function parseJson(text: Buffer, name: string): unknown {
  const excess = beyondBounds(text, jsonBounds);
  if (excess !== undefined)
    throw new BadRequest(`${name} in the archive is more than any image needs: ${excess}`);
  try {
    return JSON.parse(text.toString("utf8"));
  } catch (error) {
    throw new BadRequest(`${name} in the archive is not JSON`, { cause: error });
  }
}
