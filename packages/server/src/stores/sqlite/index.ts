export { SqliteStore } from "./sqlite-store.ts";
