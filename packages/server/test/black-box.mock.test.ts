import { blackBox } from "./black-box/black-box.ts";
import { mockProvider } from "./support/providers.ts";

blackBox("mock", { provider: mockProvider });
