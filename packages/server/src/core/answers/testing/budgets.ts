/** What a budget of bodies says in tests. */
export const refusals = {
  tooLarge: (bytes: number) => `it would take more than ${bytes} bytes`,
  full: { why: "others fill the memory there is", advice: "try again" },
  shareFull: { why: "you fill your share of the memory there is", advice: "try again" },
};
