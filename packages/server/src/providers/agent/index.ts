export { AgentClient, type AgentConfigure, type AgentInfo, type AgentRenewal } from "./agent-client.ts";
export { storeAgent, storedAgentPath } from "./agent-store.ts";
export { agentCapabilities } from "./capabilities.ts";
export type { AgentDialer } from "./channel.ts";
export { type PinnedUnixDialer, pinnedUnixDialer, unixDialer } from "./dialers.ts";
export type { CommandGroups } from "./exec-operations.ts";
export type { SharedTable } from "./places.ts";
export { pinnedVsockDialer, vsockDialer } from "./vsock-dialer.ts";
export { sharedWatchTable } from "./watch-table.ts";
