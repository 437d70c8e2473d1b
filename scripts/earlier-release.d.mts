/** Where it is, or why it cannot be had. */
export interface LaidOut {
  folder?: string;
  missing?: string;
}

type Build = (draft: string) => { error?: string };

export const earliestRelease: string;
export function earlierRelease(): LaidOut;
export function layOut(commit: string, options: { below: string; build: Build }): LaidOut;
export const fullBuild: Build;
