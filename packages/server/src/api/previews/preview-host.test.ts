import { expect, it } from "vitest";
import { readPreviewHost } from "./preview-host.ts";

const server = { publicUrl: "https://alcove.example.com:8443", previewDomain: "preview.example.com" };
const kindOf = (host: string, more = {}) => readPreviewHost(host, { ...server, ...more }).kind;

it("nothing below the domain of previews is the API's", () => {
  expect(readPreviewHost("3000-sb-a1.Preview.example.com:443", server)).toEqual({
    kind: "preview",
    target: { sandboxId: "sb-a1", port: 3000 },
  });
  for (const name of ["anything", "3000-x", "0-sb-a1", "a.3000-sb-a1", "-", ""])
    expect([name, kindOf(`${name}.preview.example.com`)]).toEqual([name, "malformed"]);
  for (const host of ["alcove.example.com", "preview.example.com", "xpreview.example.com", "127.0.0.1:7423"])
    expect([host, kindOf(host)]).toEqual([host, "other"]);
});

it("but for the name that the service is given there", () => {
  const previewDomain = "example.com";
  expect(kindOf("alcove.example.com:8443", { previewDomain })).toBe("other");
  expect(kindOf("www.example.com", { previewDomain })).toBe("malformed");
});

it("below localhost only what begins like a preview is none of the API's", () => {
  for (const previewDomain of ["localhost", "preview.example.com"]) {
    expect(kindOf("3000-sb-a1.localhost:7423", { previewDomain })).toBe("preview");
    expect(kindOf("3000-x.localhost", { previewDomain })).toBe("malformed");
    expect(kindOf("alcove.localhost", { previewDomain })).toBe("other");
  }
});
