import type { CallOptions, ImageSnapshot, RuntimeProvider } from "../../ports/index.ts";

export type ProviderSnapshot = ImageSnapshot & { provider: string };

/** The snapshots of all providers that make some, newest first. @throws what a provider throws that cannot tell. */
export async function listSnapshots(
  providers: readonly RuntimeProvider[],
  options: CallOptions,
): Promise<ProviderSnapshot[]> {
  const lists = await Promise.all(
    providers.map(async (provider) => {
      const made = (await provider.snapshots?.(options)) ?? [];
      return made.map((snapshot) => ({ ...snapshot, provider: provider.name }));
    }),
  );
  return lists.flat().sort((a, b) => b.createdAt.getTime() - a.createdAt.getTime());
}
