import { expect, it } from "vitest";
import { confinedSetCookie, passesOf } from "./own-cookies.ts";

it("a program's cookie goes through for its own host alone", () => {
  expect(confinedSetCookie("a=b; Domain=example.test; Path=/")).toBe("a=b; Path=/");
  expect(confinedSetCookie("a==b=c")).toBe("a==b=c");
});

it.each([
  "alcove-preview=x",
  " alcove-preview =x; Path=/",
  "__Host-alcove-preview=x; Secure; Path=/",
  // Browsers send back the value alone.
  "=alcove-preview=x",
  " =__Host-alcove-preview=x",
  "=; Path=/",
  "alcove-preview",
  "no-name",
  "",
])("a program does not set %j, which may come back as the service's own or has no name", (value) => {
  expect(confinedSetCookie(value)).toBeUndefined();
});

it("a pass is read by its name", () => {
  expect(passesOf("a=b; alcove-preview=one;__Host-alcove-preview=two; x-alcove-preview=no")).toEqual([
    "one",
    "two",
  ]);
});

it("a pass that nothing else can set is read whatever others below the domain have set", () => {
  const set = Array.from({ length: 50 }, (_, at) => `alcove-preview=${at}`).join("; ");
  const passes = passesOf(`${set}; __Host-alcove-preview=own`);
  expect(passes).toContain("own");
  expect(passes).toHaveLength(9);
});
