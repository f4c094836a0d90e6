"""The codec against bytes that the C++ side made (src/engine/deepinfer/wire_vectors_test.cc), and against hostile ones."""

from __future__ import annotations

import pathlib
import random
import struct

import pytest

from nereid_deepinfer import crc32c as crc
from nereid_deepinfer import wire

VECTORS = dict(line.split() for line in pathlib.Path(__file__).with_name("wire_vectors.txt").read_text().splitlines())


def decode(data: bytes) -> wire.Message:
    decoder = wire.Decoder()
    decoder.feed(data)
    message = decoder.next()
    assert message is not None and decoder.next() is None
    return message


def sealed(number: int, payload: bytes) -> bytes:
    head = struct.pack("<IHHI", wire.MAGIC, number, 0, len(payload))
    return head + struct.pack("<I", crc.crc32c(head, payload)) + payload


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_the_cpp_side(name: str) -> None:
    data = bytes.fromhex(VECTORS[name])
    assert wire.encode(decode(data)) == data


def test_every_type_has_a_vector() -> None:
    assert {type(decode(bytes.fromhex(v))) for v in VECTORS.values()} == {kind for kind, _ in wire.TYPES.values()}


def test_values_of_a_vector() -> None:
    add = decode(bytes.fromhex(VECTORS["add"]))
    assert isinstance(add, wire.AddRequest)
    assert (add.id, add.mode, add.prompt) == (0x0102030405060708, wire.AddMode.PREFILL_ONLY, [5, 129279, 0])
    assert add.sampling.temperature == 0.7 and add.sampling.seed == 0xFEDCBA9876543210
    assert add.sampling.logit_bias == [(3, -1.5), (4, 2.0)] and add.image_bytes == [b"\x89PNG\0\xff"]
    assert add.kv_namespace == bytes(range(100, 132)) and add.grammar_kind == wire.GrammarKind.JSON_SCHEMA
    frame = decode(bytes.fromhex(VECTORS["step"]))
    assert isinstance(frame, wire.StepFrame)
    assert frame.finished[0].error == wire.Error("unsupported", "no", "logit_bias") and frame.finished[0].decode_time == -4
    assert frame.tokens == [wire.TokenOut(1, 42, -0.5, [(42, -0.5), (43, -1.25)]), wire.TokenOut(2, 7)]


def test_pinned_bytes_of_the_format_page() -> None:
    assert wire.encode(wire.Hello(1, 1, "gw")).hex() == "4e455731010000000a000000544c165101000100020000006777"
    assert wire.encode(wire.Ping(7)).hex() == "4e45573104000000080000004efdd8190700000000000000"
    assert wire.encode(wire.AbortRequest(9)).hex() == "4e45573111000000080000001d08a8ca0900000000000000"


def test_any_chunking_gives_the_same_messages() -> None:
    stream = b"".join(bytes.fromhex(v) for v in VECTORS.values())
    rng = random.Random(3)
    for size in (1, 2, 7, 61, 4096):
        decoder, count, at = wire.Decoder(), 0, 0
        while at < len(stream):
            step = rng.randint(1, size)
            decoder.feed(stream[at : at + step])
            at += step
            while decoder.next() is not None:
                count += 1
        assert count == len(VECTORS)


def test_no_flipped_bit_is_read_as_something_else() -> None:
    rng = random.Random(5)
    for name, text in VECTORS.items():
        data = bytearray.fromhex(text)
        for _ in range(60):
            at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
            data[at] ^= bit
            decoder = wire.Decoder()
            decoder.feed(bytes(data))
            try:
                assert decoder.next() is None, name  # a longer length: it waits
            except wire.WireError:
                pass
            data[at] ^= bit


def test_hostile_payloads_are_errors_that_cost_nothing() -> None:
    """Correctly sealed, wrong inside: each ends in a WireError, whatever the bytes, and no count is believed."""
    rng = random.Random(7)
    for number in wire.TYPES:
        for _ in range(300):
            payload = bytes(rng.choice((0, 1, 255, rng.randrange(256))) for _ in range(rng.randrange(200)))
            decoder = wire.Decoder()
            decoder.feed(sealed(number, payload))
            try:
                message = decoder.next()
                assert message is not None
                assert wire.encode(message) == sealed(number, payload)
            except wire.WireError:
                with pytest.raises(wire.WireError):
                    decoder.next()
    for number, text in ((t, VECTORS[n]) for n, t in (("add", 16), ("step", 64), ("welcome", 2), ("import", 18))):
        payload = bytes.fromhex(text)[16:]
        for cut in range(len(payload)):
            with pytest.raises(wire.WireError):
                decode(sealed(number, payload[:cut]))
        with pytest.raises(wire.WireError, match="left after"):
            decode(sealed(number, payload + b"\0"))
    with pytest.raises(wire.WireError, match="does not fit"):
        decode(sealed(18, struct.pack("<QII", 1, 0, 0xFFFFFFFF) + bytes(64)))


@pytest.mark.parametrize(("data", "what"), [
    (b"XXXX" + bytes(12), "magic"), (struct.pack("<IHHII", wire.MAGIC, 25, 0, 0, 0), "type 25"),
    (struct.pack("<IHHII", wire.MAGIC, 4, 1, 8, 0), "flags"), (struct.pack("<IHHII", wire.MAGIC, 4, 0, (64 << 20) + 1, 0), "payload"),
])
def test_bad_headers_are_found_at_once(data: bytes, what: str) -> None:
    decoder = wire.Decoder()
    decoder.feed(data)
    with pytest.raises(wire.WireError, match=what):
        decoder.next()


def test_bad_values() -> None:
    assert isinstance(decode(sealed(1, struct.pack("<HHI", 1, 1, 2) + b"gw")), wire.Hello)
    for number, payload, what in [
        (16, wire.encode(wire.AddRequest(1))[16:24] + b"\x04" + wire.encode(wire.AddRequest(1))[25:], "AddMode"),
        (64, wire.encode(wire.StepFrame(prompt_logprobs=[wire.PromptLogprobs(1, [float("nan")])]))[16:], "not a number"),
        (16, wire.encode(wire.AddRequest(1, sampling=wire.SamplingParams(temperature=float("inf"))))[16:], "finite"),
        (16, wire.encode(wire.AddRequest(1, images=[wire.ImageRef(2, bytes(32)), wire.ImageRef(1, bytes(32))]))[16:], "sorted"),
    ]:
        with pytest.raises(wire.WireError, match=what):
            decode(sealed(number, payload))


def test_too_large_a_payload_is_the_callers_to_answer() -> None:
    with pytest.raises(wire.PayloadTooLarge):
        wire.encode(wire.AddRequest(1, image_bytes=[bytes(33 << 20), bytes(33 << 20)]))


def test_crc_is_the_same_with_and_without_numpy() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283
    rng = random.Random(9)
    for size in (0, 1, 4, 100, 191, 192, 193, 511, 512, 513, 700, 1023, 1024, 5000):
        data = rng.randbytes(size)
        assert crc.crc32c(data[:12], data[12:]) == crc._advance(0xFFFFFFFF, data) ^ 0xFFFFFFFF
