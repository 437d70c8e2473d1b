import { BadRequest } from "../../ports/errors.ts";

/** Linux signal numbers, whatever the machine the service runs on. */
const signalNumbers: Readonly<Record<string, number>> = {
  HUP: 1,
  INT: 2,
  QUIT: 3,
  ILL: 4,
  TRAP: 5,
  ABRT: 6,
  IOT: 6,
  BUS: 7,
  FPE: 8,
  KILL: 9,
  USR1: 10,
  SEGV: 11,
  USR2: 12,
  PIPE: 13,
  ALRM: 14,
  TERM: 15,
  STKFLT: 16,
  CHLD: 17,
  CLD: 17,
  CONT: 18,
  STOP: 19,
  TSTP: 20,
  TTIN: 21,
  TTOU: 22,
  URG: 23,
  XCPU: 24,
  XFSZ: 25,
  VTALRM: 26,
  PROF: 27,
  WINCH: 28,
  IO: 29,
  POLL: 29,
  PWR: 30,
  SYS: 31,
};

/** The first and the last of those without names, which are called by how far from either they are. */
const realTime = { RTMIN: 34, RTMAX: 64 } as const;

/**
 * Reads a signal: a name with or without `SIG` in any case, or a number from 1 to 64, also as text; whatever a record tells among them
 * (`SIGRTMIN+3`, `SIG33`).
 * @throws BadRequest for anything else. docs/api/exec.md.
 */
export function parseSignal(signal: string | number): number {
  const text = String(signal).trim().toUpperCase();
  const name = text.startsWith("SIG") ? text.slice(3) : text;
  const known = Object.hasOwn(signalNumbers, name) ? signalNumbers[name] : numberIn(name);
  if (known !== undefined && known >= 1 && known <= 64) return known;
  throw new BadRequest(
    `signal ${JSON.stringify(String(signal).slice(0, 32))} is not known; give a name such as SIGTERM or a number from 1 to 64`,
  );
}

function numberIn(name: string): number | undefined {
  if (/^\d{1,2}$/.test(name)) return Number(name);
  const [, from, way = "+", far = "0"] = /^(RTMIN|RTMAX)(?:([+-])(\d{1,2}))?$/.exec(name) ?? [];
  if (from === undefined) return undefined;
  const number = realTime[from as keyof typeof realTime] + Number(`${way}${far}`);
  return number >= realTime.RTMIN ? number : undefined;
}
