export { type RuntimesOfInstallation, runtimesByInstallation } from "./by-installation.ts";
export { commonRecord } from "./common-record.ts";
export { consoleLines } from "./console-lines.ts";
export { HeldFolder } from "./held-folder.ts";
export { parseRecord, RecordFolders, UnreadableRecord } from "./record-folders.ts";
export { ofInstallation, ofRuntime, RuntimeLabels } from "./runtime-labels.ts";
export { fromNote, noteOf, WrittenNote } from "./sandbox-note.ts";
export { SpawnsUnderWay } from "./spawns-under-way.ts";
