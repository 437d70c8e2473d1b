"""Tries to reach addresses from inside a sandbox, in every way that programs have. Takes a JSON object of arguments and
prints one: for each attempt what was read, or the error.
"""

import errno
import json
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

IP_PKTINFO = 8
IP_UNICAST_IF = 50
SO_BINDTODEVICE = 25
PATIENCE = 1.0


def told(error):
    return errno.errorcode.get(error.errno, type(error).__name__) if error.errno else type(error).__name__


def attempt(what):
    try:
        return what()
    except OSError as error:
        return told(error)


def stream(family, address, port=80, prepare=lambda connection: None):
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        prepare(connection)
        connection.connect((address, port))
        return connection.recv(100).decode().strip()


def datagram(address, port=80, prepare=lambda connection: None, ancillary=()):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(PATIENCE / 4)
        prepare(connection)
        connection.sendmsg([b"hello"], list(ancillary), 0, (address, port))
        return connection.recvfrom(100)[0].decode().strip()


def echo(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as connection:
        connection.settimeout(PATIENCE / 4)
        connection.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, 1), (address, 0))
        return f"answered by {connection.recvfrom(100)[1][0]}"


def to_device(connection):
    connection.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"tap0")


def by_interface(connection):
    connection.setsockopt(socket.IPPROTO_IP, IP_UNICAST_IF, struct.pack("!I", socket.if_nametoindex("tap0")))


def broadcasting(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)


def bound(connection):
    broadcasting(connection)
    connection.bind(("198.18.255.100", 0))


def by_name(name):
    found = socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    return stream(family, address[0])


def ways(address):
    index = socket.if_nametoindex("tap0")
    information = [(socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=I4s4s", index, bytes(4), bytes(4)))]
    octets = [int(octet) for octet in address.split(".")]
    number = int.from_bytes(bytes(octets), "big")
    return {
        "tcp": lambda: stream(socket.AF_INET, address),
        "tcp of the resolver's port": lambda: stream(socket.AF_INET, address, 53),
        "tcp, bound to the interface": lambda: stream(socket.AF_INET, address, 80, to_device),
        "tcp, by interface": lambda: stream(socket.AF_INET, address, 80, by_interface),
        "tcp, mapped": lambda: stream(socket.AF_INET6, f"::ffff:{address}"),
        "tcp, mapped and bound": lambda: stream(socket.AF_INET6, f"::ffff:{address}", 80, to_device),
        "udp": lambda: datagram(address, prepare=broadcasting),
        "udp of the resolver's port": lambda: datagram(address, 53, prepare=broadcasting),
        "udp, bound": lambda: datagram(address, prepare=bound),
        "udp, bound to the interface": lambda: datagram(address, prepare=to_device),
        "udp, by packet": lambda: datagram(address, ancillary=information),
        "echo": lambda: echo(address),
        "by name": lambda: by_name("-".join(map(str, octets)) + ".test"),
        "as a number": lambda: by_name(str(number)),
        "as a number in hexadecimals": lambda: by_name(hex(number)),
        "in octal": lambda: by_name(".".join(f"0{octet:o}" for octet in octets)),
        "shortened": lambda: by_name(f"{octets[0]}.{int.from_bytes(bytes(octets[1:]), 'big')}"),
    }


arguments = json.loads(sys.argv[1])
jobs = [(address, way, what) for address in arguments["addresses"] for way, what in ways(address).items()]
for address in arguments.get("addresses6", []):
    jobs.append((address, "tcp", lambda address=address: stream(socket.AF_INET6, address)))
results = {address: {} for address, _, _ in jobs}
# Without cgroups a sandbox's memory is bounded by what it reserves, which is 8 MB for a thread unless told otherwise.
threading.stack_size(256 * 1024)
with ThreadPoolExecutor(32) as pool:
    for (address, way, _), result in zip(jobs, pool.map(lambda job: attempt(job[2]), jobs)):
        results[address][way] = result
print(json.dumps(results))
