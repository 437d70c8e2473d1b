export { DockerProvider, type DockerProviderOptions, dockerCapabilities } from "./docker-provider.ts";
export { orphanedContainers } from "./orphaned-containers.ts";
