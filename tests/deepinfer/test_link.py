"""The socket: greeting, order, one client after another, hostile clients. Single-threaded: the test turns the loop."""

from __future__ import annotations

import pathlib
import socket
import tempfile
from collections.abc import Iterator

import pytest

from nereid_deepinfer import wire
from nereid_deepinfer.link import Server
from rig import Rig, fake_rig


class Peer:
    def __init__(self, server: Server, path: str) -> None:
        self.server = server
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.setblocking(False)
        self.decoder = wire.Decoder()
        self.closed = False

    def send(self, *messages: wire.Message) -> None:
        self.raw(b"".join(wire.encode(m) for m in messages))

    def raw(self, data: bytes) -> None:
        self.sock.send(data)

    def take(self, turns: int = 3) -> list[wire.Message]:
        out: list[wire.Message] = []
        for _ in range(turns):
            self.server._wake_write and __import__("os").write(self.server._wake_write, b"t")  # no turn waits
            self.server.turn(False)
            try:
                data = self.sock.recv(1 << 20)
                self.closed = self.closed or not data
                self.decoder.feed(data)
            except BlockingIOError:
                pass
            except ConnectionError:
                self.closed = True
            while (message := self.decoder.next()) is not None:
                out.append(message)
        return out


@pytest.fixture
def rig() -> Rig:
    return fake_rig("NORMAL")


@pytest.fixture
def server(rig: Rig) -> Iterator[tuple[Server, str, list[str]]]:
    log: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "s")
        server = Server(rig.agent, path, log.append)
        yield server, path, log
        server.listener.close()


def greeted(server: tuple[Server, str, list[str]]) -> Peer:
    peer = Peer(server[0], server[1])
    peer.send(wire.Hello(1, 1, "test"))
    assert isinstance(peer.take()[0], wire.Welcome)
    return peer


def test_a_request_from_greeting_to_end(server: tuple[Server, str, list[str]], rig: Rig) -> None:
    peer = greeted(server)
    peer.send(wire.AddRequest(1, prompt=[5] * 20, max_tokens=3), wire.Ping(9))
    got = peer.take(12)
    assert wire.Pong(9) in got
    frames = [m for m in got if isinstance(m, wire.StepFrame)]
    tokens = [t.token for f in frames for t in f.tokens]
    assert tokens == [rig.script.token("0:1", k) for k in range(3)]
    assert [f.reason for m in frames for f in m.finished] == [wire.EndReason.LENGTH]
    rig.rest()


def test_versions_that_do_not_meet_are_refused(server: tuple[Server, str, list[str]]) -> None:
    peer = Peer(server[0], server[1])
    peer.send(wire.Hello(2, 3, "later"))
    got = peer.take()
    assert isinstance(got[0], wire.Refuse) and got[0].error.code == "unsupported" and peer.closed


@pytest.mark.parametrize("first", [wire.Ping(1), wire.AbortRequest(1)])
def test_the_first_message_is_a_greeting(server: tuple[Server, str, list[str]], first: wire.Message) -> None:
    peer = Peer(server[0], server[1])
    peer.send(first)
    peer.take()
    assert peer.closed and server[0].bad_messages == 1


@pytest.mark.parametrize("bad", [b"GET / HTTP/1.1\r\n\r\n", wire.encode(wire.StepFrame()), wire.encode(wire.Hello()),
                                 wire.encode(wire.Welcome())])
def test_garbage_closes_and_the_next_client_is_served(server: tuple[Server, str, list[str]], rig: Rig, bad: bytes) -> None:
    peer = greeted(server)
    peer.send(wire.AddRequest(1, prompt=[5] * 300, max_tokens=500))
    peer.take(4)
    peer.raw(bad)
    peer.take()
    assert peer.closed and server[0].bad_messages == 1 and not rig.agent.by_id
    rig.rest()
    again = greeted(server)
    again.send(wire.AddRequest(1, prompt=[5] * 20, max_tokens=1))
    assert any(isinstance(m, wire.StepFrame) and m.finished for m in again.take(8))


def test_client_that_goes_away_leaves_nothing(server: tuple[Server, str, list[str]], rig: Rig) -> None:
    peer = greeted(server)
    peer.send(*[wire.AddRequest(i, prompt=[5] * 200, max_tokens=500) for i in range(8)])
    peer.take(5)
    assert len(rig.agent.by_id) == 8
    peer.sock.close()
    peer.server.turn(False)
    assert not rig.agent.by_id and server[0].client is None
    rig.rest()


def test_no_step_while_the_client_does_not_read(server: tuple[Server, str, list[str]], rig: Rig) -> None:
    peer = greeted(server)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    peer.send(*[wire.AddRequest(i, prompt=[5] * 3, max_tokens=1500, top_logprobs=20) for i in range(16)])
    import os

    for _ in range(900):
        os.write(server[0]._wake_write, b"t")
        server[0].turn(False)
    client = server[0].client
    assert client is not None and client.outbox and len(client.outbox) < 1 << 20
    steps = rig.agent._steps
    os.write(server[0]._wake_write, b"t")
    server[0].turn(False)
    assert rig.agent._steps == steps
    got = peer.take(2000)
    assert sum(len(m.tokens) for m in got if isinstance(m, wire.StepFrame)) > 0 and rig.agent._steps > steps
