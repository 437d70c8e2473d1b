export { type RuntimesOfInstallation, runtimesByInstallation } from "./by-installation.ts";
export { parseRecord, RecordFolders, UnreadableRecord } from "./record-folders.ts";
export { fromNote, noteOf, WrittenNote } from "./sandbox-note.ts";
export { SpawnsUnderWay } from "./spawns-under-way.ts";
