import { mockProvider } from "./providers.ts";
import { startTestServer } from "./test-server.ts";

/** What a server built from this tree answers at `/api/v1/openapi.json`, as it is checked in. */
export async function currentDocument(): Promise<string> {
  await using server = await startTestServer({ provider: mockProvider });
  const response = await fetch(`${server.url}/api/v1/openapi.json`);
  return `${JSON.stringify(await response.json(), null, 2)}\n`;
}
