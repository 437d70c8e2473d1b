"""Hooks of schemathesis: generated requests reach sandboxes and commands that there are."""

import json
import os
import zlib

import schemathesis

KNOWN = json.loads(os.environ["GENERATED_REQUESTS_KNOWN"])
# What ends a sandbox gets ids of its own, so that the others last.
ENDING = {"destroySandbox", "extendSandbox"}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if not path_parameters or "id" not in path_parameters:
        return path_parameters
    operation = context.operation.definition.raw.get("operationId")
    # Reproducible: which sandbox it is depends on what was generated alone.
    number = zlib.crc32(repr(sorted(path_parameters.items())).encode("utf-8", "surrogatepass"))
    if number % 10 == 0:
        return path_parameters
    ids = KNOWN["ending"] if operation in ENDING else KNOWN["sandboxes"]
    sandbox = ids[number % len(ids)]
    mapped = {**path_parameters, "id": sandbox}
    if "execId" in mapped:
        execs = KNOWN["execs"][sandbox]
        mapped["execId"] = execs[number // 7 % len(execs)]
    return mapped


@schemathesis.hook
def before_call(context, case, kwargs):
    """A user, a directory, a network and a provider that there are, in what is meant to be accepted: no schema names them."""
    if not isinstance(case.body, dict) or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    known = {"user": "root", "workdir": "/workspace", "network": "none", "provider": ""}
    for name, value in known.items():
        if case.body.get(name):
            case.body[name] = value
    if KNOWN["provider"] == "mock":
        # It simulates no terminal and holds no command to limits.
        for name in ("tty", "cols", "rows", "limits"):
            case.body.pop(name, None)


@schemathesis.serializer("application/x-tar")
def tar(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@schemathesis.deserializer("application/x-ndjson")
def lines(context, response):
    """The schema describes one line; the last is the one with most in it."""
    found = [json.loads(line) for line in response.content.splitlines()]
    return found[-1]
