import type { Store } from "../../ports/index.ts";

export type FaultKind = "crash" | "fail";

/**
 * Counts every step a process takes outside itself, before and after its effect, and strikes at one of them.
 * A crash never lets the process go on: this step and all later ones wait for ever. A failure throws once.
 */
export class CrashPoints {
  readonly #strikeAt: number;
  readonly #kind: FaultKind;
  readonly struck: Promise<void>;
  readonly names: string[] = [];
  #strike!: () => void;
  #dead = false;
  #armed = true;

  constructor(options: { strikeAt: number; kind: FaultKind }) {
    this.#strikeAt = options.strikeAt;
    this.#kind = options.kind;
    this.struck = new Promise((resolve) => {
      this.#strike = resolve;
    });
  }

  get dead(): boolean {
    return this.#dead;
  }

  /** Nothing strikes from now on. */
  disarm(): void {
    this.#armed = false;
  }

  async pass(name: string): Promise<void> {
    if (this.#dead) await never();
    this.names.push(name);
    if (this.names.length - 1 !== this.#strikeAt || !this.#armed) return;
    if (this.#kind === "fail") throw new Error(`scripted failure at ${name}`);
    this.#dead = true;
    this.#strike();
    await never();
  }
}

function never(): Promise<never> {
  return new Promise(() => undefined);
}

/** A store whose every call passes a point before and after its effect. */
export function withCrashPoints(store: Store, points: CrashPoints): Store {
  const wrap = <T extends object>(target: T, prefix: string): T =>
    new Proxy(target, {
      get(_target, property) {
        const value: unknown = Reflect.get(target, property, target);
        if (typeof value !== "function") return value;
        const name = `${prefix}.${String(property)}`;
        if (property === "liveStates") {
          return async function* () {
            await points.pass(`before ${name}`);
            yield* Reflect.apply(value, target, []) as AsyncIterable<unknown>;
            await points.pass(`after ${name}`);
          };
        }
        return async (...args: unknown[]) => {
          await points.pass(`before ${name}`);
          const result: unknown = await Reflect.apply(value, target, args);
          await points.pass(`after ${name}`);
          return result;
        };
      },
    });
  return {
    sandboxes: wrap(store.sandboxes, "sandboxes"),
    idempotency: wrap(store.idempotency, "idempotency"),
    events: store.events,
    quotas: store.quotas,
    templates: store.templates,
    audit: store.audit,
    keys: store.keys,
    instanceId: (candidate) => store.instanceId(candidate),
    setting: (name) => store.setting(name),
    changeSetting: (name, value) => store.changeSetting(name, value),
    commits: store.commits,
    ping: () => store.ping(),
    [Symbol.asyncDispose]: async () => undefined,
  };
}
