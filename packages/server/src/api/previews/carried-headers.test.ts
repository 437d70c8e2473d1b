import type { IncomingMessage } from "node:http";
import { expect, test } from "vitest";
import { headersForProgram } from "./carried-headers.ts";

test("what programs are told of the client is not the client's to say, however it spells it", () => {
  const rawHeaders = ["X_Forwarded_For", "6.6.6.6", "x_forwarded-proto", "https", "X_Real_IP", "6.6.6.6"];
  const request = { method: "GET", headers: {}, rawHeaders: [...rawHeaders, "X_Own", "kept"] };
  const headers = headersForProgram(request as unknown as IncomingMessage, {
    host: "3000-sb-a.localhost",
    client: { address: "192.0.2.1", forwardedFor: "192.0.2.1", proto: "http" },
    isKey: () => false,
    cookies: true,
    via: "alcove-test",
  });
  const names = headers.filter((_, index) => index % 2 === 0).map((name) => name.replaceAll("_", "-"));
  expect(names).toContain("X-Own");
  expect(names.filter((name) => /^x-(forwarded-(for|proto)|real-ip)$/i.test(name))).toEqual([
    "X-Forwarded-For",
    "X-Forwarded-Proto",
  ]);
});
