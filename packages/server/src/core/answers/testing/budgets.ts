/** What a budget of bodies says in tests. */
export const refusals = {
  tooLarge: (bytes: number) => `it would take more than ${bytes} bytes`,
  full: "others fill the memory there is",
  shareFull: "you fill your share of the memory there is",
};
