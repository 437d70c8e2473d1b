import { NotFound, ProviderError, Unavailable } from "../ports/errors.ts";

/**
 * Streams a `docker save` archive of an image from a Docker Engine.
 * @param options.socket unix:///path or tcp://host:port.
 */
export async function* savedByEngine(
  name: string,
  options: { socket: string; signal: AbortSignal },
): AsyncGenerator<Uint8Array> {
  const isUnix = !/^(tcp|http):\/\//.test(options.socket);
  const socketPath = options.socket.replace(/^unix:\/\//, "");
  // Only here: 110 modules, which a service that imports no image of an engine does not keep in memory.
  const { Client } = await import("undici");
  await using opened = new AsyncDisposableStack();
  const client = opened.adopt(
    isUnix
      ? new Client("http://localhost", { socketPath, bodyTimeout: 0, headersTimeout: 0 })
      : new Client(options.socket.replace(/^tcp:/, "http:"), { bodyTimeout: 0, headersTimeout: 0 }),
    (client) => client.destroy(),
  );
  const path = `/images/${name.split("/").map(encodeURIComponent).join("/")}/get`;
  const response = await client
    .request({ method: "GET", path, signal: options.signal })
    .catch((error: unknown) => {
      options.signal.throwIfAborted();
      throw new Unavailable(`the Docker Engine at ${options.socket} cannot be reached`, { cause: error });
    });
  if (response.statusCode === 404) {
    await response.body.dump();
    throw new NotFound(`the Docker Engine at ${options.socket} has no image ${name}`);
  }
  if (response.statusCode !== 200) {
    const said = (await response.body.text()).slice(0, 1_000);
    throw new ProviderError(
      `the Docker Engine at ${options.socket} answered ${response.statusCode}: ${said}`,
    );
  }
  yield* response.body;
}
