import { X509Certificate } from "node:crypto";
import { readFile } from "node:fs/promises";
import { isIP } from "node:net";
import { join } from "node:path";
import { createSecureContext } from "node:tls";
import { messageOf } from "../../platform/message-of.ts";
import { Unavailable } from "../../ports/index.ts";

/** What a connection to an engine behind TLS is made with: the engine is checked, and checks us. */
export interface TlsMaterial {
  ca: Buffer;
  cert: Buffer;
  key: Buffer;
  servername: string;
}

/** How long before a certificate's end it is told. */
const toldBeforeMs = 14 * 86_400_000;

/** The files of `providers.docker.tls_dir`, read when first needed, and again after they did not help: they may be renewed. */
export class EngineTls {
  readonly #dir: string;
  readonly #host: string;
  #read: Promise<TlsMaterial> | undefined;

  constructor(options: { dir: string; host: string }) {
    this.#dir = options.dir;
    this.#host = options.host;
  }

  /** @throws Unavailable when a file cannot be read. */
  material(): Promise<TlsMaterial> {
    this.#read ??= this.#files();
    return this.#read;
  }

  /** Of our certificate, as the next connection reads it. @returns undefined while it has long to go, and for what is none. */
  async ending(now: Date): Promise<string | undefined> {
    try {
      const end = new X509Certificate(await readFile(join(this.#dir, "cert.pem"))).validToDate;
      if (end.getTime() - now.getTime() > toldBeforeMs) return undefined;
      const verb = end <= now ? "ended" : "ends";
      return `the certificate in providers.docker.tls_dir ${verb} at ${end.toISOString()}: renew it, no restart is needed`;
    } catch {
      return undefined;
    }
  }

  /** No connection came to be with them. */
  forget(): void {
    this.#read = undefined;
  }

  async #files(): Promise<TlsMaterial> {
    try {
      const [ca, cert, key] = await Promise.all(
        ["ca.pem", "cert.pem", "key.pem"].map((name) => readFile(join(this.#dir, name))),
      );
      if (ca === undefined || cert === undefined || key === undefined) throw new Error("a file is missing");
      // Throws for what is no certificate or key, or one that does not belong to the other.
      createSecureContext({ ca, cert, key });
      // An address is no name: it is compared with the addresses that the certificate has.
      return { ca, cert, key, servername: isIP(this.#host) === 0 ? this.#host : "" };
    } catch (error) {
      this.forget();
      throw new Unavailable(
        `providers.docker.tls_dir has to hold ca.pem, cert.pem and key.pem: ${messageOf(error)}`,
        { cause: error },
      );
    }
  }
}
