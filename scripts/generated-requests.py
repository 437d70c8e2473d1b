"""Hooks of schemathesis: generated requests reach sandboxes, commands and quotas that there are."""

import atexit
import json
import os
import re
import zlib
from urllib.parse import unquote

import hypothesis
import schemathesis

# Schemathesis has hypothesis search for what an operation accepts: two thirds of a run. What is sent here is made
# acceptable below instead.
hypothesis.target = lambda *args, **kwargs: None

KNOWN = json.loads(os.environ["GENERATED_REQUESTS_KNOWN"])
# What ends a sandbox gets ids of its own, so that the others last.
ENDING = {"destroySandbox", "extendSandbox"}
EXEC_ID = re.compile("ex-[a-z0-9]{8,32}")
OWNER = re.compile(r"[^\s/\\\x00-\x1f\x7f-\xa0]{1,128}")
# What the schema takes and a sandbox may not have.
FIT = {
    "user": re.compile(r"[^\s/\x00-\x1f\x7f-\xa0\u2028\u2029]{1,128}"),
    "workdir": re.compile(r"/[^\x00]{0,4095}"),
    "network": re.compile(r"none|outbound|host"),
    "provider": re.compile(r".{1,64}", re.DOTALL),
}
AROUND = re.compile(r"^[\s\ufeff]|[\s\ufeff]$")


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    path = context.operation.path
    if not path_parameters or not ("/sandboxes/{id}" in path or "/quotas/{ownerID}" in path):
        return path_parameters
    operation = context.operation.definition.raw.get("operationId")
    if "ownerID" in path_parameters:
        owner = str(path_parameters["ownerID"])
        # Whitespace around an owner is taken off, so that it is invalid inside alone.
        if AROUND.search(unquote(owner)):
            return {**path_parameters, "ownerID": f"a{owner}b"}
    # Reproducible: which sandbox it is depends on what was generated alone.
    number = zlib.crc32(repr(sorted(path_parameters.items())).encode("utf-8", "surrogatepass"))
    if number % 10 == 0:
        return path_parameters
    # What is invalid is meant to be refused, and stays.
    if "ownerID" in path_parameters:
        if not OWNER.fullmatch(unquote(owner)):
            return path_parameters
        return {**path_parameters, "ownerID": KNOWN["owners"][number % len(KNOWN["owners"])]}
    ids = KNOWN["ending"] if operation in ENDING else KNOWN["sandboxes"]
    sandbox = ids[number % len(ids)]
    mapped = {**path_parameters, "id": sandbox}
    if "execId" in mapped and EXEC_ID.fullmatch(str(mapped["execId"])):
        execs = KNOWN["execs"][sandbox]
        mapped["execId"] = execs[number // 7 % len(execs)]
    return mapped


def is_empty(value):
    if isinstance(value, dict):
        # Where no object is expected its names are sent.
        return all(map(is_empty, value)) or all(map(is_empty, value.values()))
    return value is None or value == "" or isinstance(value, list) and all(map(is_empty, value))


@schemathesis.hook
def filter_query(context, query):
    """A value left empty is not given, whatever its name: no schema says so, and such a request is not invalid."""
    return not query or not any(map(is_empty, query.values()))


@schemathesis.hook
def before_call(context, case, kwargs):
    """A user, a directory, a network and a provider that there are, in what is meant to be accepted: no schema names them.
    And never the worker that all others need."""
    # Drained or deleted by its example, the service would refuse spawns from then on.
    if "/admin/workers/" in case.operation.path and case.path_parameters.get("workerID") == "local":
        case.path_parameters = {**case.path_parameters, "workerID": "worker-2"}
    # The machine's own programs, on image `host`: gigabytes, and cut at the first folder that is its administrator's alone.
    if case.operation.path.endswith("/files/archive") and case.method == "GET":
        query = case.query or {}
        if isinstance(query.get("path"), str) and query["path"].startswith(("/lib", "/usr", "/sbin", "/bin")):
            case.query = {**query, "path": "/workspace"}
    if not isinstance(case.body, dict) or case.meta is None:
        return
    known = {"user": "root", "workdir": "/workspace", "network": "none", "provider": ""}
    if not case.meta.generation.mode.is_positive:
        # A template that was accepted all the same, for what is wrong elsewhere is ignored, is spawned from later.
        if "/templates" in case.operation.path:
            for name, value in known.items():
                if isinstance(case.body.get(name), str) and FIT[name].fullmatch(case.body[name]):
                    case.body[name] = value
        return
    for name, value in known.items():
        if case.body.get(name):
            case.body[name] = value
    if KNOWN["provider"] == "mock":
        # It simulates no terminal and holds no command to limits.
        for name in ("tty", "cols", "rows", "limits"):
            case.body.pop(name, None)


requests = 0


@schemathesis.hook
def after_call(context, case, response):
    global requests
    requests += 1


@atexit.register
def tell():
    with open(os.environ["GENERATED_REQUESTS_COUNT"], "w") as file:
        file.write(str(requests))


@schemathesis.serializer("application/x-tar")
def tar(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@schemathesis.deserializer("application/x-ndjson")
def lines(context, response):
    """The schema describes one line; the last is the one with most in it."""
    found = [json.loads(line) for line in response.content.splitlines()]
    return found[-1]
