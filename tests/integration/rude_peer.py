"""An agent program for tests that does what well-behaved ones do not.

`python rude_peer.py MODE FILE`: it follows the protocol as far as MODE says, and writes
every line that it receives to FILE, behind its process id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TextIO

MODE, FILE = sys.argv[1:3]
UPDATE = "session/update"


def send(**body: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **body}) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    content = {"type": "text", "text": text}
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    send(method=UPDATE, params={"sessionId": "s", "update": update})


def ask(number: int) -> None:
    options = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    call = {"toolCallId": "c", "title": "remove everything"}
    params = {"sessionId": "s", "toolCall": call, "options": options}
    send(id=number, method="session/request_permission", params=params)


def hello(message: dict[str, object]) -> None:
    version = 2 if MODE == "newer" else 1
    send(id=message["id"], result={"protocolVersion": version})


def prompted(message: dict[str, object]) -> None:
    """Begin the turn, in the way of this mode."""
    end = {"stopReason": "end_turn"}
    if MODE == "garbage":
        sys.stdout.write("this is no JSON\n[1]\n")
        say("still here")
        send(id=message["id"], result=end)
    elif MODE == "long":
        say("x" * 5_000_000)
        send(id=message["id"], result=end)
    elif MODE == "too-long":
        say("x" * 20_000_000)
        send(id=message["id"], result=end)
    elif MODE == "exits":
        say("I was about to ")
        sys.exit(3)
    elif MODE == "unknown":
        send(id="u", method="fs/read_text_file", params={"path": "/etc/passwd"})
    elif MODE in {"asks", "takes-back"}:
        say("may I? ")
        ask(7)
        if MODE == "takes-back":
            send(method="$/cancel_request", params={"requestId": 7})
    elif MODE == "odd":
        send(id=message["id"], result={"stopReason": "bored"})
    elif MODE in {"silent", "stubborn", "late"}:
        say("working ")


def main(record: TextIO) -> None:
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = (
            "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        )
        below = subprocess.Popen([sys.executable, "-c", child])
        record.write(f"{below.pid}\n")
    prompt = None
    for line in sys.stdin:
        record.write(line)
        record.flush()
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            hello(message)
        elif method == "session/new":
            send(id=message["id"], result={"sessionId": "s"})
        elif method == "session/prompt":
            prompt = message["id"]
            prompted(message)
        elif method == "session/cancel" and MODE == "late":
            say("and the end of it")
            send(id=prompt, result={"stopReason": "cancelled"})
        elif method is None and MODE in {"asks", "unknown", "takes-back"}:
            # The answer to our own request ends the turn.
            say(json.dumps(message.get("result") or message.get("error")))
            send(id=prompt, result={"stopReason": "end_turn"})
    if MODE == "stubborn":
        signal.pause()


with open(FILE, "w", encoding="utf-8") as opened:
    opened.write(f"{os.getpid()}\n")
    opened.flush()
    main(opened)
