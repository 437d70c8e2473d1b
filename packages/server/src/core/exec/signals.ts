import { BadRequest } from "../../ports/errors.ts";

/** Linux signal numbers, whatever the machine the service runs on. */
const signalNumbers: Readonly<Record<string, number>> = {
  HUP: 1,
  INT: 2,
  QUIT: 3,
  ILL: 4,
  TRAP: 5,
  ABRT: 6,
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

/**
 * Reads a signal: a name with or without `SIG` in any case, or a number from 1 to 64, also as text.
 * @throws BadRequest for anything else. docs/api/exec.md.
 */
export function parseSignal(signal: string | number): number {
  const text = String(signal).trim().toUpperCase();
  const number = /^\d{1,2}$/.test(text) ? Number(text) : undefined;
  if (number !== undefined && number >= 1 && number <= 64) return number;
  const name = text.startsWith("SIG") ? text.slice(3) : text;
  const known = Object.hasOwn(signalNumbers, name) ? signalNumbers[name] : undefined;
  if (known !== undefined) return known;
  throw new BadRequest(
    `signal ${JSON.stringify(String(signal).slice(0, 32))} is not known; give a name such as SIGTERM or a number from 1 to 64`,
  );
}
