import { Duplex } from "node:stream";
import { ownBytes } from "../../platform/own-bytes.ts";
import { ProviderError } from "../../ports/errors.ts";
import { frameKinds } from "./frames.ts";
import { Operation } from "./operation.ts";

/** A TCP connection inside a sandbox, carried in `data` and `eof` frames. The signal counts until it is connected. */
export class PortDial extends Operation {
  override readonly fresh = true;
  override readonly lasting = true;
  readonly #connected = Promise.withResolvers<Duplex>();
  readonly #stream: Duplex;
  #answered = false;
  #eof = false;

  constructor() {
    super();
    this.#stream = new Duplex({
      read: () => this.connection?.resume(),
      write: (chunk: Buffer, _encoding, done) => this.#write(chunk, done),
      final: (done) => {
        this.connection?.sendEof();
        done();
      },
      destroy: (error, done) => {
        this.cancel(error ?? undefined);
        done(error);
      },
    });
    // It may fail before who dialled listens, who learns so by its being destroyed.
    this.#stream.on("error", () => undefined);
  }

  get connected(): Promise<Duplex> {
    return this.#connected.promise;
  }

  override onReply(): void {
    this.unguard();
    this.#answered = true;
    this.#connected.resolve(this.#stream);
  }
  override onRaw(kind: number, bytes: Buffer): void {
    if (this.#eof) throw new ProviderError("the agent sent data of a port after its end");
    if (kind === frameKinds.data && !this.#stream.push(ownBytes(bytes))) this.connection?.pause();
  }
  override onEof(): void {
    this.#eof = true;
    this.#stream.push(null);
  }
  protected override onEnd(): void {
    this.#stream.push(null);
  }
  protected override onFailure(error: unknown): void {
    if (!this.#answered) this.#connected.reject(error);
    // Both directions have ended in order: the agent closes the connection then.
    const complete = this.#stream.readableEnded && this.#stream.writableFinished;
    this.#stream.destroy(!complete && error instanceof Error ? error : undefined);
  }

  #write(chunk: Buffer, done: (error?: Error) => void): void {
    const connection = this.connection;
    if (connection === null) done(new Error("the connection into the sandbox has ended"));
    else if (connection.sendData(chunk)) done();
    else void connection.drained().then(() => done());
  }
}
