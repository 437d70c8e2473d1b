export function removeLeftDrafts(folder: string): void;
