export function serviceNodeFlags(): string[];
