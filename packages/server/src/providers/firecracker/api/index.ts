export { FirecrackerRefusal } from "./failures.ts";
export { type ApiPatience, FirecrackerApi } from "./firecracker-api.ts";
export type { Bodies, InstanceInfo, RateLimiter } from "./shapes.ts";
