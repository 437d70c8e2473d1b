// Brings the log of a database into it, on a thread of its own: see log-checkpoints.ts. Plain JavaScript, because what strips
// types would be loaded once more for this thread, and takes more memory than the rest of it.
const { DatabaseSync } = require("node:sqlite");
const { parentPort, workerData } = require("node:worker_threads");

// A file that was moved away meanwhile is not made anew.
const db = new DatabaseSync(`${workerData.url}?mode=rw`);
// As the connection that writes: the log is on the disk before the database is changed, and that before the log is used again.
db.exec("PRAGMA synchronous = NORMAL");
const checkpoint = db.prepare("PRAGMA wal_checkpoint(PASSIVE)");

/** @returns {{ left: number } | { error: string, errcode: unknown }} */
function round() {
  try {
    // Somebody else is at it: what is left is not known then, and is not nothing.
    const { busy, log, checkpointed } = checkpoint.get();
    return { left: busy === 0 ? log - checkpointed : Number.POSITIVE_INFINITY };
  } catch (error) {
    return { error: error.message, errcode: error.errcode };
  }
}

parentPort.on("message", (message) => {
  if (message === "checkpoint") {
    parentPort.postMessage(round());
    return;
  }
  // Whoever closes the database last empties the log: the connection that writes.
  db.close();
  parentPort.close();
});
