"""A tiny client of engine-wire, blocking, for tests and benchmarks."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from nereid_deepinfer import wire


class Client:
    def __init__(self, path: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.sock = socket.socket(socket.AF_UNIX)
            try:
                self.sock.connect(path)
                break
            except OSError:
                self.sock.close()
                if time.monotonic() > deadline:
                    raise
                select.select([], [], [], 0.05)
        self.decoder = wire.Decoder()
        self.backlog: list[wire.Message] = []
        self.send(wire.Hello(1, 1, "test"))
        welcome = self.receive(seconds)
        assert isinstance(welcome, wire.Welcome), welcome
        self.info = welcome.info

    def send(self, *messages: wire.Message) -> None:
        self.sock.sendall(b"".join(wire.encode(m) for m in messages))

    def receive(self, seconds: float = 30) -> wire.Message:
        """The next message. EOFError when the engine closed."""
        deadline = time.monotonic() + seconds
        while (message := self.decoder.next()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError(f"nothing within {seconds} s")
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("the engine closed the connection")
            self.decoder.feed(data)
        return message

    def until(self, ends: int, seconds: float = 60) -> dict[int, dict[str, Any]]:
        """Collects frames until so many requests have ended: {id: {tokens, end}}."""
        out: dict[int, dict[str, Any]] = {}
        done = 0
        deadline = time.monotonic() + seconds
        while done < ends:
            message = self.receive(max(0.1, deadline - time.monotonic()))
            if not isinstance(message, wire.StepFrame):
                continue
            for token in message.tokens:
                entry = out.setdefault(token.id, {"tokens": [], "end": None})
                assert entry["end"] is None
                entry["tokens"].append(token.token)
            for finished in message.finished:
                entry = out.setdefault(finished.id, {"tokens": [], "end": None})
                assert entry["end"] is None, f"{finished.id} ended twice"
                entry["end"] = finished
                done += 1
            self.load = message.load
        return out
