/** Whose it is, for the data of an event: nothing where it is nobody's. */
export function ownerData(ownerId: string): { owner_id?: string } {
  return ownerId === "" ? {} : { owner_id: ownerId };
}
