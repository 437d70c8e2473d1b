/** What a sandbox may be called, to stand within an expression; never what an id looks like. */
export const sandboxNamePattern = "(?!sb-)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?";
