"""An agent loop: a model says what to do, a sandbox does it, the model sees what came of it. Python alone, no packages."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ.get("ALCOVE_URL", "http://127.0.0.1:7423")
KEY = os.environ.get("ALCOVE_API_KEY")

TASK = "Write /workspace/sum.sh, which prints the sum of the numbers in /workspace/numbers.txt."

# What the model may do. Real ones take descriptions of this shape.
TOOLS = [
    {
        "name": "run",
        "description": "Runs a shell command in the sandbox, in /workspace.",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
    {
        "name": "write",
        "description": "Writes a file in the sandbox.",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
]


def model(messages):
    """Scripted: what a real model would say here. Yours is asked with `messages` and TOOLS, and answers in one of these two forms."""
    last = messages[-1]["content"]
    if len(messages) == 1:
        script = "cat numbers.txt | while read n; do total=$((total + n)); done\necho $((total))\n"
        return {"tool": "write", "input": {"path": "/workspace/sum.sh", "content": script}}
    if "written" in last:
        return {"tool": "run", "input": {"command": "sh sum.sh"}}
    if json.loads(last).get("stdout") == "0\n":
        # The loop ran in a subshell, and its total is gone with it.
        script = "while read n; do total=$((total + n)); done < numbers.txt\necho $((total))\n"
        return {"tool": "write", "input": {"path": "/workspace/sum.sh", "content": script}}
    return {"answer": "sum.sh prints " + json.loads(last)["stdout"].strip()}


class Refused(Exception):
    """What the service did not do. Its body says why, in words that a model understands."""


def call(method, path, body=None):
    headers = {"Content-Type": "application/json"}
    if KEY:
        headers["X-API-Key"] = KEY
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + "/api/v1" + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        raise Refused(refused.read().decode()) from None


def use(sandbox, tool, given):
    """Does what the model asked for. Whatever comes of it is for the model to read, refusals and time-outs too."""
    try:
        if tool == "run":
            # A command that does not end is ended, with all it started.
            done = call("POST", f"/sandboxes/{sandbox}/exec", {"command": given["command"], "timeout": "60s"})
            kept = {name: done[name] for name in ("exit_code", "reason", "stdout", "stderr")}
            # A model reads the end of a long output at most.
            return json.dumps({**kept, "stdout": kept["stdout"][-4000:], "stderr": kept["stderr"][-4000:]})
        if tool == "write":
            return json.dumps(call("POST", f"/sandboxes/{sandbox}/files", given))
        return json.dumps({"message": f"there is no tool {tool}"})
    except Refused as refused:
        return str(refused)


def main():
    # It ends by itself after ten minutes, should this program be killed before it can end it.
    sandbox = call("POST", "/sandboxes", {"ttl": "10m", "metadata": {"for": "getting started"}})["id"]
    try:
        call("POST", f"/sandboxes/{sandbox}/files", {"path": "/workspace/numbers.txt", "content": "10\n20\n12\n"})
        messages = [{"role": "user", "content": TASK}]
        for _ in range(20):
            said = model(messages)
            if "answer" in said:
                print("answer:", said["answer"])
                return
            print(said["tool"] + ":", json.dumps(said["input"]))
            result = use(sandbox, said["tool"], said["input"])
            print("  ->", result)
            messages.append({"role": "assistant", "content": json.dumps(said)})
            messages.append({"role": "user", "content": result})
        print("it did not come to an answer in 20 steps")
    finally:
        call("DELETE", f"/sandboxes/{sandbox}")


main()
