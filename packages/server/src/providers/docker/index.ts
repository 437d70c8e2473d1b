export { DockerProvider, type DockerProviderOptions, dockerCapabilities } from "./docker-provider.ts";
