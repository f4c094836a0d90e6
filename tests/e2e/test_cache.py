"""`nereid serve` and its KV cache: what survives an engine, a service and a damaged disk, and that answers never show it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

import pytest

from conftest import BINARY, wait_for

WORDS = "sea wave salt wind sail shore tide pearl coral reef storm cloud light stone sand bird fish rope mast keel".split()
SMALL = ["--engine.parallel=2", "--engine.context=2048", "--engine.threads=2", "--engine.prefix_store=128MiB",
         "--cache.memory=128MiB", "--cache.capacity=512MiB"]


def prompt(salt, words=420):
    return f"[{salt}] " + " ".join(WORDS[(i * 7 + i // 20 + salt) % len(WORDS)] for i in range(words))


def ask(server, text, tokens=12):
    """(text, tokens of the prompt that were not computed)."""
    status, _, raw = server.request("POST", "/v1/completions", {
        "model": "default", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    assert status == 200, raw
    body = json.loads(raw)
    details = body["usage"].get("prompt_tokens_details") or {}
    return body["choices"][0]["text"], details.get("cached_tokens") or 0


def count(server, outcome):
    return server.metrics().get(f'nereid_kv_client_objects_total{{outcome="{outcome}"}}', 0)


def saved(server, blocks):
    """The node has the blocks, and its disk too."""
    wait_for(lambda: count(server, "saved") >= blocks, 30, "blocks at the node")
    wait_for(lambda: server.metrics().get("nereid_kv_append_queue", 1) == 0, 30, "blocks on disk")


def restart_engine(server):
    old = server.worker_pid()
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: server.worker_pid() not in (None, old) and server.ready(), 60, "another engine")


def kill(server):
    server.process.kill()
    server.process.wait()


@pytest.fixture
def folder(tmp_path):
    return f"--cache.folder={tmp_path / 'kv'}"


def test_an_engine_that_dies_finds_its_prompts_in_memory_K48(serve, folder):
    server = serve(*SMALL, folder)
    text, cached = ask(server, prompt(1))
    assert cached == 0
    saved(server, 5)
    restart_engine(server)
    again, cached = ask(server, prompt(1))
    assert again == text and cached >= 320
    assert ask(server, prompt(1))[0] == text
    wait_for(lambda: count(server, "fetched") * 64 >= cached, 10, "fetched blocks on /metrics")


def test_a_service_that_dies_finds_its_prompts_on_disk_K17(serve, folder):
    server = serve(*SMALL, folder)
    text, _ = ask(server, prompt(2))
    saved(server, 5)
    kill(server)  # nothing was sealed
    server = serve(*SMALL, folder)
    again, cached = ask(server, prompt(2))
    assert again == text and cached >= 320
    assert server.stop() == 0  # sealed
    server = serve(*SMALL, folder)
    again, cached = ask(server, prompt(2))
    assert again == text and cached >= 320
    wait_for(lambda: server.metrics().get('nereid_kv_tier_used_bytes{tier="ssd"}', 0) > 0, 10, "bytes of the disk on /metrics")


def test_turns_of_a_conversation_are_the_same_across_restarts(serve, folder, tmp_path):
    plain = serve(*SMALL, "--cache.enabled=false")
    server = serve(*SMALL, folder)
    text = prompt(3)
    for turn in range(3):
        expected, _ = ask(plain, text, 24)
        got, cached = ask(server, text, 24)
        assert got == expected
        assert turn == 0 or cached >= 320, turn
        saved(server, 5)
        restart_engine(server)
        text += got + f" Turn {turn}: " + " ".join(WORDS[turn:turn + 9])


def test_a_damaged_disk_is_a_miss_K1_K2_K12(serve, folder, tmp_path):
    server = serve(*SMALL, folder)
    text, _ = ask(server, prompt(4))
    saved(server, 5)
    assert server.stop() == 0
    segments = sorted((tmp_path / "kv").glob("*.nks"))
    assert segments
    with open(segments[0], "r+b") as f:  # in the payload of the third block
        f.seek(2 * 1_474_624 + 700_000)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 0x40]))
    server = serve(*SMALL, folder)
    again, cached = ask(server, prompt(4))
    assert again == text and 0 < cached < 320
    wait_for(lambda: server.metric_sum("nereid_kv_crc_failures_total") >= 1, 10, "it is counted")
    assert ask(server, prompt(4))[0] == text
    # A folder of nonsense, and one that cannot be: told at once.
    server.stop()
    (tmp_path / "kv" / "superblock").write_bytes(b"x" * 4096)
    with pytest.raises(AssertionError, match="cache.folder"):
        serve(*SMALL, folder)


def test_one_service_to_a_folder_the_other_has_memory_K10(serve, folder):
    first = serve(*SMALL, folder)
    second = serve(*SMALL, folder)
    text, _ = ask(first, prompt(5))
    assert ask(second, prompt(5))[0] == text
    assert "prompts are kept in memory only" in second.log()
    restart_engine(second)
    again, cached = ask(second, prompt(5))
    assert again == text and cached >= 320


def test_off_is_off(serve, folder, tmp_path):
    server = serve(*SMALL, folder, "--cache.enabled=false")
    text, _ = ask(server, prompt(6))
    restart_engine(server)
    assert ask(server, prompt(6)) == (text, 0)
    assert not (tmp_path / "kv").exists()


@contextlib.contextmanager
def node(socket, *args):
    process = subprocess.Popen([BINARY, "cache", "serve", "--socket", socket, "--memory", "128MiB", *args],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        pathlib.Path(socket).unlink(missing_ok=True)


def test_a_node_that_stops_or_dies_costs_no_request_K23_K28(serve, tmp_path):
    socket = str(tmp_path / "kv.sock")
    server = serve(*SMALL, f"--cache.node={socket}")
    text, _ = ask(server, prompt(7))  # there is none yet
    with node(socket) as process:
        restart_engine(server)
        assert ask(server, prompt(7)) == (text, 0)
        stats = [BINARY, "cache", "stats", "--socket", socket]
        wait_for(lambda: b'"committed":0' not in subprocess.check_output(stats), 30, "blocks at the node")
        restart_engine(server)
        again, cached = ask(server, prompt(7))
        assert again == text and cached >= 320
        restart_engine(server)
        process.send_signal(signal.SIGSTOP)
        assert ask(server, prompt(7)) == (text, 0)  # after one deadline
        process.send_signal(signal.SIGCONT)
    assert ask(server, prompt(7))[0] == text
    restart_engine(server)
    assert ask(server, prompt(7)) == (text, 0)
