import { connect, createServer, type Server, type Socket } from "node:net";
import type { Guest } from "./guests.ts";

/**
 * The unix socket of a machine's vsock: a connection names a port of the guest with `CONNECT N`, is answered `OK M`, and is the
 * guest's from there on. Where nothing listens it is closed.
 * @throws Error when there is something at the path already, as Firecracker does.
 */
export function listenVsock(path: string, guest: () => Guest | undefined): Promise<Server> {
  let hostPort = 1073741824;
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on("error", () => socket.destroy());
    void firstLine(socket).then((line) => {
      const port = /^CONNECT (\d+)$/.exec(line ?? "")?.[1];
      const door = guest()?.door();
      if (port === undefined || door === undefined) return socket.destroy();
      const inner = connect({ path: door.path, allowHalfOpen: true });
      inner.on("error", () => socket.destroy());
      inner.on("close", () => socket.destroy());
      socket.on("close", () => inner.destroy());
      inner.on("connect", () => {
        if (door.handshake) inner.write(`CONNECT ${port}\n`);
        else socket.write(`OK ${hostPort++}\n`);
        socket.pipe(inner);
        inner.pipe(socket);
      });
    });
  });
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(path, () => resolve(server));
  });
}

async function firstLine(socket: Socket): Promise<string | undefined> {
  let line = "";
  for (;;) {
    const byte: Buffer | null = socket.read(1);
    if (byte === null) {
      const more = await new Promise<boolean>((resolve) => {
        socket.once("readable", () => resolve(true));
        socket.once("close", () => resolve(false));
        socket.once("end", () => resolve(false));
      });
      if (!more || line.length > 64) return undefined;
      continue;
    }
    const letter = byte.toString("latin1");
    if (letter === "\n") return line;
    line += letter;
  }
}
