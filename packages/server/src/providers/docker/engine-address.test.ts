import { describe, expect, it } from "vitest";
import { BadRequest } from "../../ports/index.ts";
import { parseEngineAddress } from "./engine-address.ts";

describe("parseEngineAddress()", () => {
  it("reads sockets and TCP addresses", () => {
    expect(parseEngineAddress("unix:///var/run/docker.sock")).toMatchObject({
      kind: "unix",
      path: "/var/run/docker.sock",
    });
    expect(parseEngineAddress("tcp://10.0.0.1:2376")).toMatchObject({
      kind: "tcp",
      host: "10.0.0.1",
      port: 2376,
    });
    expect(parseEngineAddress("tcp://engine")).toMatchObject({ kind: "tcp", host: "engine", port: 2375 });
    expect(parseEngineAddress("tcp://engine", { tls: true })).toMatchObject({ port: 2376 });
    expect(parseEngineAddress("tcp://[::1]:99")).toMatchObject({ kind: "tcp", host: "::1", port: 99 });
  });

  it("refuses everything else, naming the key", () => {
    for (const bad of [
      "",
      "/var/run/docker.sock",
      "unix://relative",
      "ssh://host",
      "tcp://",
      "tcp://host:99999",
    ]) {
      expect(() => parseEngineAddress(bad), bad).toThrow(BadRequest);
      expect(() => parseEngineAddress(bad), bad).toThrow("providers.docker.socket");
    }
  });
});
