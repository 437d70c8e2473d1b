"""Servers of a test's network. They answer on every address of the namespace they run in, and count who comes.

TCP 80 says which address was reached and then echoes; 81 sends zeros until nobody takes them; 82 takes everything.
UDP 80 answers the same, 53 resolves names such as 10-1-2-3.test to the address in them. A line on standard input is
answered with the counts, as JSON.
"""

import json
import selectors
import socket
import sys

IP_PKTINFO = 8
counts = {"tcp": {}, "udp": {}, "names": 0, "open": 0, "most": 0, "taken": 0}
selector = selectors.DefaultSelector()
peers = {}


def count(kind, address):
    counts[kind][address] = counts[kind].get(address, 0) + 1


def listen(port):
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("0.0.0.0", port))
    server.listen(4096)
    server.setblocking(False)
    selector.register(server, selectors.EVENT_READ, (accept, port))


def accept(server, port):
    try:
        peer, _ = server.accept()
    except BlockingIOError:
        return
    address = peer.getsockname()[0]
    count("tcp", address)
    counts["open"] += 1
    counts["most"] = max(counts["most"], counts["open"])
    peer.setblocking(False)
    if port == 80:
        peer.send(f"reached {address}\n".encode())
    events = selectors.EVENT_WRITE if port == 81 else selectors.EVENT_READ
    selector.register(peer, events, ({80: echo, 81: pour, 82: take}[port], None))


def leave(peer):
    selector.unregister(peer)
    peer.close()
    counts["open"] -= 1


def attempt(peer, what):
    try:
        return what()
    except BlockingIOError:
        return None
    except OSError:
        leave(peer)
        return None


def echo(peer, _):
    data = attempt(peer, lambda: peer.recv(65536))
    if data == b"":
        leave(peer)
    elif data:
        attempt(peer, lambda: peer.send(data))


def pour(peer, _):
    attempt(peer, lambda: peer.send(bytes(65536)))


def take(peer, _):
    data = attempt(peer, lambda: peer.recv(1 << 20))
    if data == b"":
        leave(peer)
    elif data:
        counts["taken"] += len(data)


def datagrams(port, answer):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    server.bind(("0.0.0.0", port))
    selector.register(server, selectors.EVENT_READ, (receive, answer))


def receive(server, answer):
    data, ancillary, _, sender = server.recvmsg(4096, 64)
    info = ancillary[0][2] if ancillary else bytes(12)
    address = socket.inet_ntoa(info[8:12])
    count("udp", address)
    reply = answer(data, address)
    if reply:
        # From the address that was asked.
        server.sendmsg([reply], [(socket.IPPROTO_IP, IP_PKTINFO, bytes(4) + info[8:12] + bytes(4))], 0, sender)


def resolve(data, _):
    if len(data) < 17:
        return None
    counts["names"] += 1
    end, labels = 12, []
    while data[end]:
        labels.append(data[end + 1 : end + 1 + data[end]])
        end += 1 + data[end]
    question = data[12 : end + 5]
    header = data[:2] + b"\x81\x80\x00\x01"
    if question[-4:] != b"\x00\x01\x00\x01":
        return header + bytes(6) + question
    address = socket.inet_aton(labels[0].decode().replace("-", "."))
    return header + b"\x00\x01" + bytes(4) + question + b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04" + address


def tell(stream, _):
    if not stream.readline():
        sys.exit(0)
    print(json.dumps(counts), flush=True)


for number in (80, 81, 82):
    listen(number)
datagrams(80, lambda data, address: f"reached {address}\n".encode())
datagrams(53, resolve)
selector.register(sys.stdin, selectors.EVENT_READ, (tell, None))
print("ready", flush=True)
while True:
    for key, _ in selector.select():
        act, detail = key.data
        act(key.fileobj, detail)
