import type { IncomingMessage } from "node:http";
import { clientError } from "./errors.ts";
import { cutWhenSilent } from "./silence.ts";
import type { Call, Transport } from "./transport.ts";

/**
 * Opens a stream of server-sent events, which is cut when it falls silent.
 * @throws AlcoveError `bad_response` for an answer that is none: the page of a proxy would be a stream on which nothing happens.
 */
export async function openEvents(transport: Transport, call: Omit<Call, "method">): Promise<IncomingMessage> {
  const response = await transport.send({
    ...call,
    method: "GET",
    headers: { ...call.headers, accept: "text/event-stream" },
  });
  if (response.headers["content-type"]?.startsWith("text/event-stream") !== true) {
    response.destroy();
    throw clientError(
      "bad_response",
      `GET ${call.path}: the answer is no stream of events; is ${transport.baseUrl.href} an Alcove service?`,
    );
  }
  cutWhenSilent(response);
  return response;
}
