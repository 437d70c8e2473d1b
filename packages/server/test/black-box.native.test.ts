import { blackBox } from "./black-box/black-box.ts";
import { nativeMissing, nativeProvider } from "./support/native-factory.ts";

const skip = await nativeMissing();

blackBox("native", { provider: nativeProvider, ...(skip === undefined ? {} : { skip }) });
