import { once } from "node:events";
import http from "node:http";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { PreviewLinks } from "../src/core/previews/preview-links.ts";
import { TestClient } from "./support/http.ts";
import { TestPorts } from "./support/ports-provider.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { startTestServer, type TestServer } from "./support/test-server.ts";

describe("previews by links", () => {
  const ports = new TestPorts();
  let server: TestServer;
  let api: TestClient;
  let id: string;
  let preview: PreviewClient;
  let programs: Disposable[];

  beforeAll(async () => {
    server = await startTestServer({
      provider: ports.factory,
      env: {
        ALCOVE_AUTH_API_KEY: "client-key",
        ALCOVE_AUTH_ADMIN_API_KEY: "admin-key",
        ALCOVE_SERVER_PUBLIC_URL: "https://alcove.example",
        ALCOVE_SERVER_PREVIEW_DOMAIN: "preview.example",
        ALCOVE_SERVER_TRUSTED_PROXIES: "127.0.0.1",
        ALCOVE_PREVIEW_RESPONSE_TIMEOUT: "5s",
      },
    });
    api = new TestClient(server.url, { "x-api-key": "client-key" });
    id = await api.spawn();
    preview = new PreviewClient(server.url, `3000-${id}.preview.example`);
    const echo = () =>
      http.createServer((request, response) => {
        const { url, headers } = request;
        response.end(JSON.stringify({ url, headers }));
      });
    programs = [await ports.listen(3000, echo()), await ports.listen(3001, echo())];
  });
  afterAll(async () => {
    for (const program of programs) program[Symbol.dispose]();
    await server[Symbol.asyncDispose]();
  });

  const linkTo = async (port: number, query = "") => {
    const answer = await api.call("GET", `/api/v1/sandboxes/${id}/preview/${port}${query}`);
    expect(answer.status).toBe(200);
    return { ...answer, url: new URL(answer.json.url) };
  };
  const html = { accept: "text/html" };

  test("a link is told to who has a key, and lets a browser in with a cookie of that host", async () => {
    const { url, json, headers } = await linkTo(3000, "?ttl=5m");
    expect(json).toMatchObject({ port: 3000, access: "signed" });
    expect(Math.abs(Date.parse(json.expires_at) - Date.now() - 300_000)).toBeLessThan(10_000);
    expect(headers.get("cache-control")).toBe("no-store");
    expect(url.origin).toBe(`https://3000-${id}.preview.example`);

    const opened = await preview.get(`/a?x=1&${url.search.slice(1)}&y=2`, { headers: html });
    expect(opened).toMatchObject({
      status: 302,
      headers: { location: "/a?x=1&y=2", "referrer-policy": "no-referrer" },
    });
    const [cookie = ""] = opened.headers["set-cookie"] ?? [];
    expect(cookie).toMatch(
      /^__Host-alcove-preview=[\w.-]+; Path=\/; Max-Age=(300|29\d); HttpOnly; Secure; SameSite=None; Partitioned$/,
    );
    const pass = cookie.split(";", 1)[0] ?? "";
    const shown = await preview.get("/a?x=1", { headers: { ...html, cookie: `a=1; ${pass}` } });
    expect(shown.status).toBe(200);
    expect(JSON.parse(shown.text)).toMatchObject({
      url: "/a?x=1",
      headers: { cookie: "a=1", "x-forwarded-proto": "https" },
    });
  });

  test("the cookie counts for the visitor and the preview itself, not for pages of other previews", async () => {
    const { url } = await linkTo(3000);
    const opened = await preview.get(`/${url.search}`, { headers: html });
    const cookie = opened.headers["set-cookie"]?.[0]?.split(";", 1)[0] ?? "";
    const status = async (method: string, headers: Record<string, string>) =>
      (await preview.get("/", { method, headers: { cookie, ...headers } })).status;
    const own = `https://3000-${id}.preview.example`;
    const other = `https://3001-${id}.preview.example`;
    for (const origin of [other, "https://evil.example", "null"])
      expect([origin, await status("POST", { origin })]).toEqual([origin, 401]);
    for (const site of ["same-site", "cross-site"])
      expect([site, await status("GET", { "sec-fetch-site": site, "sec-fetch-mode": "no-cors" })]).toEqual([
        site,
        401,
      ]);
    expect(await status("POST", { "sec-fetch-site": "same-site", "sec-fetch-mode": "navigate" })).toBe(401);
    expect(await status("POST", { origin: own, "sec-fetch-site": "same-origin" })).toBe(200);
    expect(await status("GET", { "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate" })).toBe(200);
    for (const [origin, answer] of [
      [other, "401"],
      [own, "other"],
    ] as const) {
      const socket = preview.socket("/", { headers: { cookie, origin } });
      const [error] = await once(socket, "error");
      expect(/401/.test(String(error)) ? "401" : "other").toBe(answer);
    }
  });

  test("a program gets what it asks for with the link itself, and never sees it", async () => {
    const { url } = await linkTo(3000);
    for (const path of [`/${url.search}`, `/${url.search}&`]) {
      const answer = await preview.get(path, { method: "POST", body: "x" });
      expect([answer.status, JSON.parse(answer.text).url.replace("?", "")]).toEqual([200, "/"]);
    }
    const got = await preview.get(`/${url.search}`, { headers: { accept: "application/json" } });
    expect([got.status, JSON.parse(got.text).url]).toEqual([200, "/"]);
  });

  test("over plain HTTP and on localhost the cookie is another, and a proxy says what it was", async () => {
    const { url } = await linkTo(3000);
    const local = new PreviewClient(server.url, `3000-${id}.localhost`);
    const opened = await local.get(`/${url.search}`, { headers: html });
    expect(opened.headers["set-cookie"]?.[0]).toMatch(/^alcove-preview=.*; HttpOnly; SameSite=Lax$/);
    const proxied = await local.get(`/${url.search}`, { headers: { ...html, "x-forwarded-proto": "https" } });
    expect(proxied.headers["set-cookie"]?.[0]).toMatch(/^__Host-alcove-preview=/);
  });

  test("nobody is let in with less: no link, one of another port or sandbox, an altered or a cookie's one", async () => {
    const { url } = await linkTo(3000);
    const pass = url.searchParams.get("alcove_preview") ?? "";
    const other = (await linkTo(3001)).url.search;
    const strange = await api.spawn();
    const ofStrange = new PreviewClient(server.url, `3000-${strange}.preview.example`);
    const [until = "", issuer = "", signature = ""] = pass.split(".");
    const later = `${(Number.parseInt(until, 36) + 1).toString(36)}.${issuer}.${signature}`;
    const byOther = `${until}.${"a".repeat(16)}.${signature}`;
    const opened = await preview.get(`/?alcove_preview=${pass}`, { headers: html });
    const cookie = opened.headers["set-cookie"]?.[0]?.split(";", 1)[0]?.split("=")[1] ?? "";
    const refused = async (at: PreviewClient, path: string, headers: Record<string, string> = {}) => {
      const answer = await at.get(path, { headers });
      expect([path, headers, answer.status]).toEqual([path, headers, 401]);
      expect(answer.headers["set-cookie"]).toBeUndefined();
    };
    await refused(preview, "/");
    await refused(preview, "/", { "x-api-key": "client-key" });
    await refused(preview, "/", { authorization: "Bearer client-key" });
    await refused(preview, `/${other}`);
    await refused(ofStrange, `/${url.search}`);
    for (const bad of ["", "x", pass.slice(0, -1), `${pass}a`, later, byOther, `${pass}%00`, cookie])
      await refused(preview, `/?alcove_preview=${bad}`);
    for (const bad of [pass, `${cookie}a`, later])
      await refused(preview, "/", { cookie: `__Host-alcove-preview=${bad}` });
    const gone = new PreviewClient(server.url, "3000-sb-000000000000.preview.example");
    await refused(gone, "/");
    const many = Array.from({ length: 50 }, () => "alcove-preview=x").join("; ");
    await refused(preview, "/", { cookie: `${many}; alcove-preview=${cookie}` });
  });

  test("a link is no way to another host", async () => {
    const { url } = await linkTo(3000);
    for (const path of ["//evil.example/", "/\\evil.example/"]) {
      const { headers } = await preview.get(`${path}${url.search}`, { headers: html });
      expect(new URL(headers.location ?? "", url).host).toBe(url.host);
    }
  });

  test("a link ends, and what was opened with it", async () => {
    const links = new PreviewLinks({
      secret: Buffer.alloc(32),
      issuers: { tagOf: () => "a".repeat(16), find: () => null },
      clock: { now: () => new Date(5_000) },
    });
    const target = { sandboxId: "sb-1", port: 1 };
    const passUntil = (ms: number) => links.sign("link", target, { until: new Date(ms), issuer: null });
    expect(links.verify("link", target, passUntil(5_999))).toBeUndefined();
    expect(links.verify("link", target, passUntil(6_000))).toEqual({ until: new Date(6_000), issuer: null });
    expect(links.verify("cookie", target, passUntil(6_000))).toBeUndefined();

    const web = http.createServer();
    web.on("upgrade", (_request, socket) =>
      socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    );
    using _program = await ports.listen(3002, web);
    const { url } = await linkTo(3002, "?ttl=2s");
    const request = http.get({
      port: preview.port,
      host: "127.0.0.1",
      path: `/${url.search}`,
      headers: { host: url.host, connection: "Upgrade", upgrade: "websocket" },
    });
    const [, socket] = await once(request, "upgrade");
    await once(socket.resume(), "close");
    const after = await new PreviewClient(server.url, `3002-${id}.preview.example`).get(`/${url.search}`);
    expect([after.status, after.text]).toEqual([401, expect.stringContaining("expired")]);
  });

  test("a new link takes the place of a cookie that ends sooner", async () => {
    const passIn = ({ headers }: { headers: http.IncomingHttpHeaders }) =>
      headers["set-cookie"]?.[0]?.split(";", 1)[0] ?? "";
    const short = await linkTo(3000, "?ttl=5m");
    const cookie = passIn(await preview.get(`/${short.url.search}`, { headers: html }));
    const long = await linkTo(3000, "?ttl=2h");
    const opened = await preview.get(`/${long.url.search}`, { headers: { ...html, cookie } });
    expect(opened.headers["set-cookie"]?.[0]).toMatch(/Max-Age=(7200|719\d);/);
    // One that is none takes away nothing.
    const kept = await preview.get("/?alcove_preview=x", { headers: { ...html, cookie } });
    expect([kept.status, kept.headers["set-cookie"]?.[0]]).toEqual([
      302,
      expect.stringMatching(/Max-Age=(300|29\d);/),
    ]);
  });

  test("a link ends with the key that made it, and so does what was opened with it", async () => {
    const admin = new TestClient(server.url, { "x-api-key": "admin-key" });
    const make = async () => {
      const made = await admin.call("POST", "/api/v1/admin/keys", { name: "maker" });
      const maker = new TestClient(server.url, { "x-api-key": made.json.key });
      const { json } = await maker.call("GET", `/api/v1/sandboxes/${id}/preview/3003`);
      return new URL(json.url).search;
    };
    const web = http.createServer((_request, response) => response.writeHead(200).write("x"));
    web.on("upgrade", (_request, socket) =>
      socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
    );
    using _program = await ports.listen(3003, web);
    const link = await make();
    const at = new PreviewClient(server.url, `3003-${id}.preview.example`);
    const traded = await at.get(`/${link}`, { headers: html });
    const cookie = traded.headers["set-cookie"]?.[0]?.split(";", 1)[0] ?? "";
    const { response } = await at.open(`/${link}`);
    const request = http.get({
      port: at.port,
      host: "127.0.0.1",
      headers: { host: at.host, cookie, connection: "Upgrade", upgrade: "websocket" },
    });
    const [, socket] = await once(request, "upgrade");
    const cut = [expect(response.toArray()).rejects.toThrow("aborted"), once(socket.resume(), "close")];

    expect((await admin.call("DELETE", "/api/v1/admin/keys/maker")).status).toBeLessThan(300);
    await Promise.all(cut);
    // Nor does one of the same name bring it back.
    await make();
    expect((await at.get(`/${link}`)).status).toBe(401);
    expect((await at.get("/", { headers: { cookie } })).status).toBe(401);
  });

  test("a key of the service never reaches a program, and other credentials do", async () => {
    const { url } = await linkTo(3000);
    const told = async (name: string, value: string) =>
      JSON.parse((await preview.get(`/${url.search}`, { headers: { [name]: value } })).text).headers[name];
    expect(await told("authorization", "Bearer client-key")).toBeUndefined();
    expect(await told("authorization", "Bearer of-the-program")).toBe("Bearer of-the-program");
    for (const name of ["x-api-key", "x-admin-api-key"]) {
      expect(await told(name, "client-key")).toBeUndefined();
      expect(await told(name, "of-the-program")).toBe("of-the-program");
    }
  });

  test("what cannot be is refused with what to do", async () => {
    const ask = (path: string, headers = {}) =>
      api.call("GET", `/api/v1/sandboxes/${path}`, undefined, headers);
    for (const port of ["0", "65536", "x", "1.5"])
      expect((await ask(`${id}/preview/${port}`)).status).toBe(400);
    for (const ttl of ["25h", "500ms", "0s", "x"])
      expect([ttl, (await ask(`${id}/preview/80?ttl=${ttl}`)).status]).toEqual([ttl, 400]);
    expect((await ask(`${id}/preview/80?ttl=25h`)).json.message).toBe(
      "a link lives for 24h0m0s at most (preview.max_link_ttl), not 25h0m0s",
    );
    expect((await ask("sb-000000000000/preview/80")).status).toBe(404);
  });
});

describe("addresses of previews", () => {
  const addressAt = async (env: Record<string, string>, host?: string) => {
    const ports = new TestPorts();
    await using server = await startTestServer({
      provider: ports.factory,
      env: { ...env, ALCOVE_SERVER_ALLOW_INSECURE: "true" },
    });
    const id = await new TestClient(server.url).spawn();
    const client = new PreviewClient(server.url, "localhost");
    const { status, text } = await client.get(`/api/v1/sandboxes/${id}/preview/80`, {
      headers: host === undefined ? {} : { host },
    });
    return { status, body: JSON.parse(text), id, port: client.port };
  };

  test("a time for one that does not end is refused", async () => {
    await using server = await startTestServer({ provider: new TestPorts().factory });
    const client = new TestClient(server.url);
    const address = `/api/v1/sandboxes/${await client.spawn()}/preview/80`;
    const asked = await client.call("GET", `${address}?ttl=5m`);
    expect([asked.status, asked.json.message]).toEqual([400, expect.stringContaining("preview.access")]);
    expect((await client.call("GET", address)).json).toMatchObject({ access: "public" });
    expect((await client.call("GET", `${address}?ttl=`)).status).toBe(200);
  });

  test("on localhost they have the port that the service was asked at", async () => {
    const plain = await addressAt({});
    expect(plain.body).toEqual({
      url: `http://80-${plain.id}.localhost:${plain.port}/`,
      port: 80,
      access: "public",
    });
    const mapped = await addressAt({}, "127.0.0.1:8080");
    expect(mapped.body.url).toBe(`http://80-${mapped.id}.localhost:8080/`);
  });

  test("below a domain they have the way that the service is reached by", async () => {
    const domain = { ALCOVE_SERVER_PREVIEW_DOMAIN: "preview.example" };
    const asked = await addressAt(domain, "localhost:8080");
    expect(asked.body.url).toBe(`http://80-${asked.id}.preview.example:8080/`);
    const told = await addressAt({ ...domain, ALCOVE_SERVER_PUBLIC_URL: "https://alcove.example:8443" });
    expect(told.body.url).toBe(`https://80-${told.id}.preview.example:8443/`);
  });

  test("where none leads here, it says what to configure", async () => {
    const away = await addressAt({ ALCOVE_SERVER_PUBLIC_URL: "https://alcove.example" }, "alcove.example");
    expect([away.status, away.body.message]).toEqual([400, expect.stringContaining("server.preview_domain")]);
  });
});
