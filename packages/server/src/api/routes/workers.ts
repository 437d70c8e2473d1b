import { statusBody, Worker, WorkerReport } from "@alcove/wire";
import { Type } from "typebox";
import type { Workers } from "../../core/workers/workers.ts";
import { presentWorker } from "../present-figures.ts";
import { emptyBody, type RouteApp } from "./route-app.ts";

const WorkerParams = Type.Object({
  workerID: Type.String({
    description: "Worker, `local` for the service itself.",
    minLength: 1,
    maxLength: 128,
    examples: ["local"],
  }),
});

/** Workers: looked at by clients, drained and repaired by those who administer. docs/api/workers.md. */
export function workerRoutes(app: RouteApp, { workers }: { workers: Workers }): void {
  app.route({
    method: "GET",
    url: "/workers",
    schema: {
      tags: ["workers"],
      operationId: "listWorkers",
      summary: "Workers that are registered",
      response: { 200: Type.Array(Worker) },
    },
    handler: async () => workers.list().map(presentWorker),
  });

  app.route({
    method: "GET",
    url: "/workers/:workerID",
    schema: {
      tags: ["workers"],
      operationId: "getWorker",
      summary: "One worker",
      params: WorkerParams,
      response: { 200: Worker },
    },
    handler: async ({ params }) => presentWorker(workers.get(params.workerID)),
  });

  app.route({
    method: "DELETE",
    url: "/admin/workers/:workerID",
    schema: {
      tags: ["admin"],
      operationId: "deleteWorker",
      summary: "Take a worker out of the registry",
      params: WorkerParams,
      response: { 200: statusBody("deleted") },
    },
    handler: async ({ params }) => {
      workers.remove(params.workerID);
      return { status: "deleted" as const };
    },
  });

  app.route({
    method: "POST",
    url: "/admin/workers/:workerID/heartbeat",
    preValidation: emptyBody,
    schema: {
      tags: ["admin"],
      operationId: "reportWorker",
      summary: "A heartbeat in a worker's name",
      params: WorkerParams,
      body: WorkerReport,
      response: { 200: Worker },
    },
    handler: async ({ params, body: { status } }) =>
      presentWorker(await workers.heartbeat(params.workerID, status === undefined ? {} : { status })),
  });

  app.route({
    method: "POST",
    url: "/admin/workers/:workerID/drain",
    schema: {
      tags: ["admin"],
      operationId: "drainWorker",
      summary: "Take no new sandboxes on a worker",
      params: WorkerParams,
      response: { 200: Worker },
    },
    handler: async ({ params }) => presentWorker(await workers.drain(params.workerID)),
  });

  app.route({
    method: "DELETE",
    url: "/admin/workers/:workerID/drain",
    schema: {
      tags: ["admin"],
      operationId: "endDrainOfWorker",
      summary: "Take new sandboxes on a worker again",
      params: WorkerParams,
      response: { 200: Worker },
    },
    handler: async ({ params }) => presentWorker(await workers.endDrain(params.workerID)),
  });
}
