import { createHash } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import { expect, test } from "vitest";
import { eventually } from "./support/http.ts";
import { nativePlace } from "./support/native-place.ts";
import { PreviewClient } from "./support/preview-client.ts";
import { describeWith } from "./support/requirements.ts";

/** A web server in Perl, which every Debian has: it echoes bodies, switches protocols and answers `/bytes/N` with N bytes. */
const program = `
use strict; use IO::Socket::INET; $SIG{CHLD} = 'IGNORE'; $SIG{PIPE} = 'IGNORE';
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 3000, Listen => 1024, ReuseAddr => 1) or die;
while (my $c = $server->accept) {
  next if fork;
  while (defined(my $line = <$c>)) {
    my (undef, $path) = split ' ', $line; my $length = 0; my $upgrade = 0;
    while (defined(my $h = <$c>)) { last if $h eq "\\r\\n"; $length = $1 if $h =~ /^content-length: (\\d+)/i; $upgrade = 1 if $h =~ /^upgrade:/i; }
    if ($upgrade) { syswrite $c, "HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n"; while (sysread $c, my $b, 65536) { syswrite $c, $b } exit }
    if ($path =~ m{^/bytes/(\\d+)}) { my $n = $1; print $c "HTTP/1.1 200 OK\\r\\nContent-Length: $n\\r\\n\\r\\n"; my $b = 'x' x 1048576; while ($n > 0) { my $m = $n < 1048576 ? $n : 1048576; print $c substr($b, 0, $m); $n -= $m } }
    else { print $c "HTTP/1.1 200 OK\\r\\nContent-Length: $length\\r\\n\\r\\n"; while ($length > 0) { my $r = read $c, my $b, ($length < 65536 ? $length : 65536); last unless $r; print $c $b; $length -= $r } }
    $c->flush;
  }
  exit;
}
`;

await describeWith(["native", "agent", "launcher"], "previews of native sandboxes", () => {
  test("large bodies, WebSockets and many connections go through the agent, and end with the sandbox", {
    timeout: 120_000,
  }, async () => {
    await using place = await nativePlace();
    const { server, client, id } = place;
    const preview = new PreviewClient(server.url, `3000-${id}.localhost`);
    expect((await preview.get("/")).status).toBe(502);
    await client.call("POST", `/api/v1/sandboxes/${id}/files`, {
      path: "/workspace/web.pl",
      content: program,
    });
    await client.call("POST", `/api/v1/sandboxes/${id}/execs`, { command: "perl /workspace/web.pl" });
    await eventually(async () => ((await preview.get("/")).status === 200 ? true : undefined));

    const { response } = await preview.open("/bytes/100000000");
    const before = process.memoryUsage().rss;
    let received = 0;
    response.on("data", (chunk) => {
      received += chunk.length;
    });
    await once(response, "end");
    expect(received).toBe(100_000_000);
    expect(process.memoryUsage().rss - before).toBeLessThan(200 * 1_048_576);

    const sent = Buffer.alloc(20_000_000, "preview ");
    const echoed = await preview.get("/", {
      method: "POST",
      body: sent,
      headers: { "content-length": String(sent.length) },
    });
    const hash = (bytes: string | Buffer) => createHash("sha256").update(bytes).digest("hex");
    expect(hash(echoed.text)).toBe(hash(sent));

    const upgraded = async () => {
      const request = http.get({
        host: "127.0.0.1",
        port: preview.port,
        headers: { host: preview.host, connection: "Upgrade", upgrade: "websocket" },
        agent: false,
      });
      const [, socket] = await once(request, "upgrade");
      socket.on("error", () => undefined);
      return socket;
    };
    const sockets = await Promise.all(Array.from({ length: 200 }, upgraded));
    for (const socket of sockets) socket.write("hello");
    const said = await Promise.all(sockets.map(async (socket) => String((await once(socket, "data"))[0])));
    expect(new Set(said)).toEqual(new Set(["hello"]));
    // Beside them commands still run.
    const { json } = await client.exec(id, { command: "echo there is room" });
    expect(json.stdout).toBe("there is room\n");

    const closed = Promise.all(sockets.map((socket) => once(socket, "close")));
    await client.call("DELETE", `/api/v1/sandboxes/${id}`);
    await closed;
    await eventually(() => (server.app.callsUnderWay.size === 0 ? true : undefined));
    expect((await preview.get("/")).status).toBe(404);
  });
});
