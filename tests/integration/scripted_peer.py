"""An agent program for tests that does at each message what the test says.

`python scripted_peer.py FILE SCRIPT`: the script is Python. What it defines as
`started()`, `opened()`, `prompted()`, `cancelled()` and `answered(message)` is called
when that happens; `started` before the first line is read. FILE gets every line that comes in.
"""

from __future__ import annotations

import json
import os
import sys

FILE, SCRIPT = sys.argv[1:3]
prompt: object = None


def raw(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def send(**body: object) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **body}).encode())


def update(kind: str, **parts: object) -> None:
    told = {"sessionUpdate": kind, **parts}
    send(method="session/update", params={"sessionId": "s", "update": told})


def say(text: str) -> None:
    update("agent_message_chunk", content={"type": "text", "text": text})


def ask(number: object, kinds: tuple[str, ...], title: str = "go on") -> None:
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in kinds]
    call = {"toolCallId": "c", "title": title}
    params = {"sessionId": "s", "toolCall": call, "options": options}
    send(id=number, method="session/request_permission", params=params)


def end(reason: str = "end_turn") -> None:
    send(id=prompt, result={"stopReason": reason})


def main() -> None:
    global prompt  # noqa: PLW0603  # the script's
    script: dict[str, object] = dict(globals())
    exec(SCRIPT, script)  # noqa: S102  # the test's own

    def call(name: str, *arguments: object) -> None:
        script["prompt"] = prompt
        function = script.get(name)
        if callable(function):
            function(*arguments)

    call("started")
    with open(FILE, "a", encoding="utf-8") as record:
        record.write(f"{os.getpid()}\n")
        for line in sys.stdin:
            record.write(line)
            record.flush()
            message = json.loads(line)
            method = message.get("method")
            if method == "initialize":
                send(id=message["id"], result={"protocolVersion": 1})
            elif method == "session/new":
                send(id=message["id"], result={"sessionId": "s"})
                call("opened")
            elif method == "session/prompt":
                prompt = message["id"]
                call("prompted")
            elif method == "session/cancel":
                call("cancelled")
            elif method is None:
                call("answered", message)


main()
