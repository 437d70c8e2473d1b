// Loaded before the service: what it holds is to be told from what it has dropped, which V8 leaves lying for as long as it likes.
import { isMainThread } from "node:worker_threads";

const pauseMs = 2_000;

if (isMainThread) setInterval(() => globalThis.gc(), pauseMs).unref();
