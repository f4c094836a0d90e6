"""The Unix socket on which one client at a time speaks engine-wire with the agent, and the loop that joins both.

Everything is on one thread and nothing blocks but the wait of an engine without work. The rules are those of
docs/formats/engine-wire.md: commands are applied between steps, one frame per step, an abort that has arrived is applied
before the next step. While the client does not read, a rank that is alone makes no step; a rank of several must step with
the others, so its frames are kept, up to OUTBOX_BYTES, and then the client is dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

from nereid_deepinfer import wire
from nereid_deepinfer.agent import Agent

GREETING_SECONDS = 10.0
OUTBOX_BYTES = 64 << 20
READ_BYTES = 1 << 18
IDLE_SECONDS = 0.001  # between the collectives of an idle group


class Client:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.decoder = wire.Decoder()
        self.outbox = bytearray()
        self.greeted = False
        self.accepted = time.monotonic()
        self.gone = ""

    def read(self) -> list[wire.Message]:
        messages: list[wire.Message] = []
        while not self.gone:
            try:
                data = self.sock.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError as bad:
                self.gone = str(bad)
                break
            if not data:
                self.gone = "closed"
                break
            self.decoder.feed(data)
            if len(data) < READ_BYTES:
                break
        try:
            while (message := self.decoder.next()) is not None:
                messages.append(message)
        except wire.WireError as bad:
            self.gone = f"bad message: {bad}"
        return messages

    def send(self, message: wire.Message) -> None:
        self.outbox += wire.encode(message)
        self.flush()

    def flush(self) -> None:
        while self.outbox and not self.gone:
            try:
                sent = self.sock.send(self.outbox)
            except BlockingIOError:
                return
            except OSError as bad:
                self.gone = str(bad)
                return
            del self.outbox[:sent]


class Server:
    """`run` returns after `stop`; an exception out of the engine's step leaves it, and the process must end."""

    def __init__(self, agent: Agent, path: str, log: Callable[[str], None]) -> None:
        self.agent, self.log = agent, log
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        os.chmod(path, 0o600)
        self.listener.listen(4)
        self.listener.setblocking(False)
        self.client: Client | None = None
        self.stopping = False
        self.bad_messages = 0
        self._wake_read, self._wake_write = os.pipe()  # a signal ends a wait
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def wake(self) -> None:
        """Ends a wait; from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"w")

    def stop(self) -> None:
        self.stopping = True
        self.wake()

    def run(self) -> None:
        group = self.agent.runtime.data_parallel > 1
        while not self.stopping:
            self.turn(group)
        self._drop("this engine stops")
        self.listener.close()

    def turn(self, group: bool) -> None:
        self._wait(group)
        self._accept()
        client = self.client
        if client is not None:
            for message in client.read():
                self._on_message(client, message)
                if client.gone:
                    break
            client.flush()
            self._check(client)
            client = self.client
        may_step = group or client is None or not client.outbox
        if may_step and (group or self.agent.has_work() or self.agent.waits()):
            frame = self.agent.step()
            if client is not None and client.greeted and not frame.empty():
                client.send(frame)

    def _wait(self, group: bool) -> None:
        """How long a look at the sockets may take: no time with work, a millisecond in an idle group, else until woken."""
        client = self.client
        stuck = client is not None and bool(client.outbox)
        timeout: float | None = None
        if self.agent.has_work() and not (stuck and not group):
            timeout = 0
        elif group:
            timeout = IDLE_SECONDS
        elif client is not None and not client.greeted:
            timeout = GREETING_SECONDS
        elif self.agent.waits():
            timeout = 0.1
        reads: list[object] = [self._wake_read]
        reads.append(self.listener if client is None else client.sock)
        ready, _, _ = select.select(reads, [client.sock] if stuck and client else [], [], timeout)
        if self._wake_read in ready:
            os.read(self._wake_read, 64)

    def _accept(self) -> None:
        if self.client is not None:
            return
        with contextlib.suppress(BlockingIOError):
            sock, _ = self.listener.accept()
            self.client = Client(sock)

    def _on_message(self, client: Client, message: wire.Message) -> None:
        if not client.greeted:
            if not isinstance(message, wire.Hello):
                client.gone = "bad message: the first one is no greeting"
            elif not message.version_min <= wire.VERSION <= message.version_max:
                client.send(wire.Refuse(wire.Error("unsupported", f"engine-wire version {wire.VERSION} is spoken here; the "
                                                   f"client offers {message.version_min} to {message.version_max}")))
                client.gone = "no common version"
            else:
                client.greeted = True
                client.send(wire.Welcome(wire.VERSION, self.agent.runtime.info))
        elif isinstance(message, wire.Ping):
            client.send(wire.Pong(message.nonce))
        elif isinstance(message, wire.Pong):
            pass
        elif isinstance(message, (wire.Hello, wire.Welcome, wire.Refuse, wire.StepFrame)):
            client.gone = f"bad message: a client may not send {type(message).__name__} now"
        else:
            self.agent.submit(message)

    def _check(self, client: Client) -> None:
        if not client.greeted and not client.gone and time.monotonic() - client.accepted >= GREETING_SECONDS:
            client.gone = "no greeting"
        if len(client.outbox) > OUTBOX_BYTES:
            client.gone = "the client does not read"
        if client.gone:
            self._drop(client.gone)

    def _drop(self, why: str) -> None:
        if self.client is None:
            return
        if why.startswith("bad message"):
            self.bad_messages += 1
        if why != "closed":
            self.log(f"client dropped: {why}")
        self.client.sock.close()
        self.client = None
        self.agent.drop_client()
