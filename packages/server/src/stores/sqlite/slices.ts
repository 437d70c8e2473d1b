/** Rows that one slice of a long work looks at: some milliseconds, between which other writes have their turn. */
export const slice = 100;
