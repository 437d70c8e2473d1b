import { expect, test } from "vitest";
import { localUser, type Principal } from "../keys/principal.ts";
import { LinkIssuers } from "./link-issuers.ts";

function ringOf(keys: Map<string, Principal>) {
  let changed: (() => void) | undefined;
  return {
    identityOf: (principal: Principal) => [...keys].find(([, one]) => one === principal)?.[0],
    identities: () => keys.entries(),
    holds: (principal: Principal) => [...keys.values()].includes(principal),
    onChange: (listener: () => void) => {
      changed = listener;
    },
    change: () => changed?.(),
  };
}

const secret = Buffer.alloc(32, 1);
const ann: Principal = { ...localUser, name: "ann" };

test("who made a link is found until the key is taken back, by its tag alone, also by the next process", () => {
  const keys = new Map([["hash-of-ann", ann]]);
  const ring = ringOf(keys);
  const issuers = new LinkIssuers({ secret, keys: ring, authEnabled: true });
  const tag = issuers.tagOf(ann);
  expect(tag).toMatch(/^[A-Za-z0-9_-]{16}$/);
  expect(issuers.find(tag)).toBe(ann);
  expect(new LinkIssuers({ secret, keys: ringOf(keys), authEnabled: true }).find(tag)).toBe(ann);
  keys.clear();
  keys.set("hash-of-another-ann", ann);
  ring.change();
  expect(issuers.find(tag)).toBeUndefined();
});

test("links that were made without keys end when the service has some", () => {
  const open = new LinkIssuers({ secret, keys: ringOf(new Map()), authEnabled: false });
  const tag = open.tagOf(localUser);
  expect(open.find(tag)).toBeNull();
  expect(new LinkIssuers({ secret, keys: ringOf(new Map()), authEnabled: true }).find(tag)).toBeUndefined();
});
