export { matchingPaths } from "./path-pattern.ts";
