import { expect, it } from "vitest";
import { asProviderError, EngineRefusal } from "./engine-errors.ts";

const call = { method: "POST", path: "/containers/create" };

it("an engine without room is StorageFull, whatever it says beside that", () => {
  const said = "write /var/lib/docker/overlay2/1-init/link: no space left on device";
  expect(asProviderError("create the container", new EngineRefusal(call, 500, said))).toMatchObject({
    code: "storage_full",
    message: expect.stringMatching(/could not create the container: its disk is full/),
  });
  expect(asProviderError("create the container", new EngineRefusal(call, 500, "no"))).toMatchObject({
    code: "provider_error",
  });
});
