import { createHash } from "node:crypto";
import { gunzipSync } from "node:zlib";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { BrowserPage, chromium } from "./support/browser.ts";
import { Collector } from "./support/collector.ts";
import { eventually, TestClient } from "./support/http.ts";
import { mockProvider } from "./support/providers.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

const key = "0123456789abcdef-key";

describe("the reference page at /docs", () => {
  let server: TestServer;
  let client: TestClient;
  beforeAll(async () => {
    server = await startTestServer({ provider: mockProvider, env: { ALCOVE_AUTH_API_KEY: key } });
    client = new TestClient(server.url);
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test("names nothing but what this service has, and takes no key", async () => {
    const page = await client.call("GET", "/docs");
    expect(page.status).toBe(200);
    const named = [...page.text.matchAll(/(?:src|href)="([^"]*)"/g)].map(([, address = ""]) => address);
    const own = named.filter((address) => address !== "data:,");
    expect(own.toSorted()).toEqual([
      "/api/v1/openapi.json",
      "/docs/start.js",
      "/docs/swagger-ui.css",
      "/docs/swagger-ui.js",
    ]);
    for (const address of own) expect((await client.call("GET", address)).status).toBe(200);
    const styles = (await client.call("GET", "/docs/swagger-ui.css")).text;
    const loaded = [...styles.matchAll(/url\(["']?([^"')]{0,20})|@import/g)].map(
      ([, address = ""]) => address,
    );
    expect(loaded.filter((address) => !address.startsWith("data:"))).toEqual([]);
    const start = (await client.call("GET", "/docs/start.js")).text;
    expect(start).toContain('url: "/api/v1/openapi.json"');
    expect(start).toContain("validatorUrl: null");
    expect(start).not.toMatch(/https?:/);
  });

  test("runs the scripts it names and no others, not even what the API answers", async () => {
    const [first, second] = [await client.call("GET", "/docs"), await client.call("GET", "/docs")];
    const policy = first.headers.get("content-security-policy") ?? "";
    const nonce = /script-src 'nonce-([^']+)'/.exec(policy)?.[1] ?? "";
    expect(Buffer.from(nonce, "base64")).toHaveLength(16);
    expect(policy).toBe(
      `default-src 'none'; script-src 'nonce-${nonce}'; style-src 'self'; img-src 'self' data: blob:; ` +
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    );
    expect(
      [...first.text.matchAll(/<script ([^>]*)>([^<]*)/g)].map(([, attributes, code]) => [attributes, code]),
    ).toEqual([
      [`nonce="${nonce}" src="/docs/swagger-ui.js"`, ""],
      [`nonce="${nonce}" src="/docs/start.js"`, ""],
    ]);
    expect(second.headers.get("content-security-policy")).not.toBe(policy);
    expect(first.headers.get("cache-control")).toBe("no-store");
    for (const path of ["/docs", "/docs/swagger-ui.js", "/docs/start.js"]) {
      const { headers } = await client.call("GET", path);
      expect(headers.get("x-content-type-options"), path).toBe("nosniff");
      expect(headers.get("x-frame-options"), path).toBe("DENY");
      expect(headers.get("cross-origin-resource-policy"), path).toBe("same-origin");
    }
  });

  test("its parts are sent packed, and once", async () => {
    for (const path of ["/docs/swagger-ui.js", "/docs/swagger-ui.css", "/docs/start.js"]) {
      const get = (headers: Record<string, string>) => fetch(server.url + path, { headers });
      const plain = await get({ "accept-encoding": "identity" });
      expect(plain.headers.get("content-encoding")).toBeNull();
      const packed = await get({ "accept-encoding": "br;q=0.1, gzip" });
      expect(packed.headers.get("content-encoding")).toBe("gzip");
      expect(packed.headers.get("vary")).toContain("accept-encoding");
      const hash = (text: string) => createHash("sha256").update(text).digest("hex");
      expect(hash(await packed.text())).toBe(hash(await plain.text()));
      expect((await get({ "accept-encoding": "gzip;q=0" })).headers.get("content-encoding")).toBeNull();
      const etag = packed.headers.get("etag") ?? "";
      expect(etag).toMatch(/^"[\w-]{22}"$/);
      for (const known of [etag, `W/${etag}`, `"other", ${etag}`]) {
        const again = await get({ "if-none-match": known });
        expect([known, again.status, await again.text()]).toEqual([known, 304, ""]);
      }
      expect((await get({ "if-none-match": '"other"' })).status).toBe(200);
    }
    const raw = await rawBytes(`${server.url}/docs/swagger-ui.js`);
    expect(raw.length).toBeLessThan(600_000);
    expect(gunzipSync(raw).length).toBeGreaterThan(1_000_000);
  });

  test("what is below it and not there is a 404", async () => {
    for (const path of ["/docs/", "/docs/index.html", "/docs/..%2fpackage.json", "/docs/swagger-ui.js.map"])
      expect([path, (await client.call("GET", path, undefined, { "x-api-key": key })).status]).toEqual([
        path,
        404,
      ]);
  });
});

describe.skipIf(chromium === undefined)(
  `the reference page in a browser${chromium === undefined ? " (skipped: no Chromium on this machine)" : ""}`,
  { timeout: 90_000 },
  () => {
    /** Opens an operation, fills its body in and sends it. @returns what the page shows as the answer. */
    const tryCall = async (page: BrowserPage, operation: string, body?: string): Promise<string> => {
      const block = `document.querySelector('[id^="operations-"][id$="-${operation}"]')`;
      await eventually(async () => ((await page.evaluate(`${block} !== null`)) === true ? true : undefined));
      await page.evaluate(`${block}.querySelector(".opblock-summary-control").click()`);
      const shows = (selector: string) => `${block}.querySelector("${selector}")`;
      const click = async (selector: string) => {
        await eventually(async () =>
          (await page.evaluate(`${shows(selector)} !== null`)) ? true : undefined,
        );
        await page.evaluate(`${shows(selector)}.click()`);
      };
      await click(".try-out__btn");
      if (body !== undefined) {
        await eventually(async () =>
          (await page.evaluate(`${shows("textarea")} !== null`)) ? true : undefined,
        );
        // As React hears it.
        await page.evaluate(`(() => {
          const area = ${shows("textarea")};
          Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(area, ${JSON.stringify(body)});
          area.dispatchEvent(new Event("input", { bubbles: true }));
        })()`);
      }
      await click(".execute");
      const answer = `${shows(".live-responses-table .response")}?.innerText`;
      return await eventually(async () => ((await page.evaluate(answer)) as string | undefined) || undefined);
    };

    test("shows every operation, loads from this service alone, and a call works without keys", async () => {
      await using server = await startTestServer({ provider: mockProvider });
      await using page = await BrowserPage.open(`${server.url}/docs`);
      const answer = await tryCall(
        page,
        "spawnSandbox",
        '{"metadata": {"x": "<img src=x onerror=alert(1)>"}}',
      );
      expect(answer).toMatch(/^201\b/);
      expect(answer).toContain("<img src=x onerror=alert(1)>");
      expect((await server.sandboxes.list({ limit: 10 })).items).toHaveLength(1);
      const { paths } = (await new TestClient(server.url).call("GET", "/api/v1/openapi.json")).json;
      const operations = Object.values(paths).flatMap((path) => Object.keys(path as object));
      expect(await page.evaluate('document.querySelectorAll(".opblock").length')).toBe(operations.length);
      const foreign = page.requested.filter(
        (url) => !url.startsWith(server.url) && !/^(data|blob|about):/.test(url),
      );
      expect(foreign).toEqual([]);
      expect(page.complaints).toEqual([]);
    });

    test("a call is made with the key that its reader enters, which outlasts no reload", async () => {
      await using server = await startTestServer({
        provider: mockProvider,
        env: { ALCOVE_AUTH_API_KEY: key },
      });
      await using page = await BrowserPage.open(`${server.url}/docs`);
      expect(await tryCall(page, "listSandboxes")).toMatch(/^401\b/);
      await page.evaluate('document.querySelector(".btn.authorize").click()');
      await eventually(async () =>
        (await page.evaluate('document.querySelector(".auth-container input") !== null')) ? true : undefined,
      );
      await page.evaluate(`(() => {
        const field = document.querySelector(".auth-container input");
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, ${JSON.stringify(key)});
        field.dispatchEvent(new Event("input", { bubbles: true }));
        document.querySelector(".auth-container .authorize").click();
      })()`);
      await page.evaluate('document.querySelector(".opblock .execute, .opblock.is-open .execute").click()');
      await eventually(async () => {
        const shown = await page.evaluate(
          'document.querySelector(".live-responses-table .response")?.innerText',
        );
        return typeof shown === "string" && /^200\b/.test(shown) ? true : undefined;
      });
      expect(
        await page.evaluate("JSON.stringify({ ...localStorage, ...sessionStorage }) + document.cookie"),
      ).not.toContain(key);
    });

    test("no script runs that the page does not name: not from this service, not in the page", async () => {
      await using server = await startTestServer({ provider: mockProvider });
      await using elsewhere = await Collector.start((_request, response) => {
        response.setHeader("access-control-allow-origin", "*").end("{}");
      });
      await using page = await BrowserPage.open(`${server.url}/docs`);
      await eventually(async () =>
        (await page.evaluate('document.querySelector(".opblock") !== null')) ? true : undefined,
      );
      const ran = await page.evaluate(`(async () => {
        const add = (change) => new Promise((resolve) => {
          const script = document.createElement("script");
          script.onload = () => resolve("ran");
          script.onerror = () => resolve("refused");
          change(script);
          document.body.append(script);
        });
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.inline = true'>");
        const own = await add((script) => { script.src = "/docs/start.js"; });
        const fetched = await fetch("${elsewhere.url}").then(() => "went", () => "refused");
        return { own, fetched, inline: window.inline === true };
      })()`);
      expect(ran).toEqual({ own: "refused", fetched: "refused", inline: false });
      expect(elsewhere.requests).toEqual([]);
    });
  },
);

async function rawBytes(url: string): Promise<Buffer> {
  const { get } = await import("node:http");
  return await new Promise((resolve, reject) => {
    get(url, { headers: { "accept-encoding": "gzip" } }, (response) => {
      const pieces: Buffer[] = [];
      response.on("data", (piece: Buffer) => pieces.push(piece));
      response.on("end", () => resolve(Buffer.concat(pieces)));
    }).on("error", reject);
  });
}
