"""Presses on the network of a sandbox and prints what came of it, as JSON: `connections ADDRESS N`, `names RESOLVER N`,
`scan N`, `receive ADDRESS SECONDS`, `send ADDRESS SECONDS`.
"""

import collections
import errno
import json
import os
import random
import select
import socket
import struct
import sys
import time

FILES = 3_000


def started(family=socket.SOCK_STREAM):
    connection = socket.socket(socket.AF_INET, family)
    connection.setblocking(False)
    return connection


def open_many(address, count):
    """As many as one process may, at once; answers how many stood at the same time."""
    waiting, results = select.epoll(), collections.Counter()
    connections = {}
    for _ in range(count):
        connection = started()
        result = connection.connect_ex((address, 82))
        if result != errno.EINPROGRESS:
            results[errno.errorcode[result]] += 1
            continue
        connections[connection.fileno()] = connection
        waiting.register(connection, select.EPOLLOUT | select.EPOLLONESHOT)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for fd, _ in waiting.poll(0.1):
            result = connections[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            results[errno.errorcode.get(result, "connected")] += 1
    return results


def connections(address, count):
    children = []
    for _ in range(0, count, FILES):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps(open_many(address, min(count, FILES))).encode())
            os._exit(0)
        os.close(writer)
        children.append(reader)
        count -= FILES
    total = collections.Counter()
    for reader in children:
        total.update(json.loads(os.read(reader, 4096)))
    return total


def names(resolver, count):
    question = b"\1\0\0\1\0\0\0\0\0\0\x0910-1-2-3x\4test\0\0\1\0\1".replace(b"\x0910-1-2-3x", b"\x0810-1-2-3")
    sockets = [started(socket.SOCK_DGRAM) for _ in range(50)]
    begun = time.monotonic()
    for number in range(count):
        try:
            sockets[number % 50].sendto(struct.pack(">H", number % 65536) + question, (resolver, 53))
        except OSError:
            pass
    return {"seconds": time.monotonic() - begun}


def scan(count):
    results = collections.Counter()
    for _ in range(count):
        address = f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        with socket.socket() as connection:
            connection.settimeout(2)
            try:
                connection.connect((address, random.choice((22, 80, 443))))
                # Linux since 5.8 queues what a router says for a connection that opens, and wakes its program with that, a
                # moment before the connection has failed: SO_ERROR is 0 then, which Python takes for success. Nobody has
                # answered, and who is connected has a peer; without one this fails, and counts as that.
                peer = connection.getpeername()[0]
                results[f"connected to {peer}"] += 1
            except OSError as error:
                results[errno.errorcode.get(error.errno, "timeout")] += 1
    return results


def receive(address, seconds):
    total = 0
    with socket.create_connection((address, 81), 5) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            total += len(connection.recv(1 << 20))
    return {"bytes": total}


def send(address, seconds):
    total, block = 0, bytes(1 << 16)
    with socket.create_connection((address, 82), 5) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            total += connection.send(block)
    return {"bytes": total}


what, *rest = sys.argv[1:]
arguments = [int(word) if word.isdigit() else word for word in rest]
print(json.dumps({"connections": connections, "names": names, "scan": scan, "receive": receive, "send": send}[what](*arguments)))
