import type { RuntimeId, SandboxId } from "../../ports/index.ts";

/** Of every label below. */
export const labelPrefix = "alcove.";

/** Labels of everything made on an engine. `instance` keeps two services on one engine apart. */
export const labelNames = {
  instance: "alcove.instance",
  runtime: "alcove.runtime",
  /** The sandbox at creation; the runtime's record knows better once it was claimed. */
  sandbox: "alcove.sandbox",
  /** What something is that is no sandbox. */
  role: "alcove.role",
} as const;

/** Filter that only lets through what this instance made. */
export function ownedBy(instanceId: string, more: Record<string, string[]> = {}): string {
  return JSON.stringify({ ...more, label: [`${labelNames.instance}=${instanceId}`] });
}

/** Filter that lets through what any instance made. */
export const ownedByAny = JSON.stringify({ label: [labelNames.instance] });

/** A container's name: known before it exists, so that a create whose answer was lost can be undone. */
export function containerName(instanceId: string, runtimeId: RuntimeId): string {
  return `alcove-${shortInstance(instanceId)}-${runtimeId}`;
}

/** The volume of an engine that an installation's agent is in. @param instance its short name. */
export function agentVolume(instance: string, digest: string): string {
  return `alcove-agent-${instance}-${digest.slice(0, 16)}`;
}

/**
 * Whose a container is by its name, which no image has a say in and which changes when it becomes somebody's; its labels tell whom
 * it was made for.
 */
export function runtimeOf(
  instanceId: string,
  { name, labels }: { name: string | undefined; labels: Readonly<Record<string, string>> },
): RuntimeId | undefined {
  const prefix = containerName(instanceId, "" as RuntimeId);
  const named = name?.startsWith(prefix) ? name.slice(prefix.length) : "";
  return (named || labels[labelNames.runtime]) as RuntimeId | undefined;
}

export function shortInstance(instanceId: string): string {
  return instanceId.replaceAll(/[^a-zA-Z0-9]/g, "").slice(0, 12);
}

export function runtimeLabels(
  instanceId: string,
  runtime: { runtimeId: RuntimeId; sandboxId: SandboxId },
): Record<string, string> {
  return {
    [labelNames.instance]: instanceId,
    [labelNames.runtime]: runtime.runtimeId,
    [labelNames.sandbox]: runtime.sandboxId,
  };
}
