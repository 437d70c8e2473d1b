export { makeEmptyImage } from "./empty-image.ts";
export { runTool } from "./run-tool.ts";
export { makeTreeImage } from "./tree-image.ts";
