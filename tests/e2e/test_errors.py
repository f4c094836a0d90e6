"""What users do wrong: each mistake gets the dialect's error object, and the service lives."""

import json
import socket

import pytest

from conftest import wait_for

CHAT = "/v1/chat/completions"
OK = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def error_of(reply):
    status, headers, body = reply
    error = json.loads(body)["error"]
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert error["code"] is None or isinstance(error["code"], str)
    assert error["message"]
    assert headers["content-type"].startswith("application/json") and headers.get("x-request-id")
    return status, error


@pytest.mark.parametrize(
    "change, status, param",
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": None}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "messages[0].content"),
        ({"model": 7}, 400, "model"),
        ({"model": "nope"}, 404, None),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": 1e9}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"max_tokens": -5}, 400, "max_tokens"),
        ({"max_tokens": 1.5}, 400, "max_tokens"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"n": 0}, 400, "n"),
        ({"n": 10**9}, 400, "n"),
        ({"stop": 5}, 400, "stop"),
        ({"top_logprobs": 5}, 400, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, 400, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
        ({"presence_penalty": 3}, 400, "presence_penalty"),
        ({"stream": "yes"}, 400, "stream"),
        ({"response_format": {"type": "nonsense"}}, 400, "response_format.type"),    # A59
        ({"audio": {"voice": "x"}, "modalities": ["audio"]}, 400, None),
        ({"max_tokens": 10**9}, 400, "messages"),
    ],
)
def test_bad_field(server, change, status, param):
    got, error = error_of(server.request("POST", CHAT, {**OK, **change}))
    assert got == status, error
    if param:
        assert error["param"] == param, error


def test_what_is_wrong_below_messages_is_said_in_its_shape(server):
    """A93: also where no request could be read."""
    replies = [(405, server.request("GET", "/v1/messages")), (404, server.request("POST", "/v1/messages/foo", {})),
               (415, server.request("POST", "/v1/messages", b"{}", {"content-encoding": "gzip"}))]
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n")
        head, _, body = raw.makefile("rb").read().partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        replies.append((413, (int(head.split()[1]), fields, body)))
    kinds = {405: "invalid_request_error", 404: "not_found_error", 415: "invalid_request_error", 413: "request_too_large"}
    for wanted, (status, headers, body) in replies:
        answer = json.loads(body)
        assert status == wanted and answer["type"] == "error" and answer["error"]["type"] == kinds[status], answer
        assert answer["request_id"] and (status not in (413, 405) or headers["request-id"] == answer["request_id"])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b'{"model":"default"} x', b"\xff\xfe{}",
                                  b'{"model":"default","messages":[{"role":"user","content":"\xc3\x28"}]}',
                                  b'{"model":"default","messages":[{"role":"user","content":"\\ud800"}]}',
                                  b'{"a":' * 3000 + b"1" + b"}" * 3000],
                         ids=["empty", "cut", "array", "null", "string", "trailing", "bom", "utf8", "surrogate", "deep"])
def test_body_that_is_no_request(server, body):
    status, error = error_of(server.request("POST", CHAT, body))
    assert status == 400 and error["type"] == "invalid_request_error"


def test_prompt_longer_than_the_context(server):
    status, error = error_of(server.request("POST", CHAT, {**OK, "messages": [{"role": "user", "content": "word " * 9000}]}))
    assert status == 400 and error["code"] == "context_length_exceeded"    # A61
    assert "8192" in error["message"]


def test_unknown_route_and_method(server):
    assert error_of(server.request("GET", "/v1/nothing"))[0] == 404
    status, _, raw = server.request("POST", "/v1/responses", {"model": "default", "input": "x", "previous_response_id": "resp_x"})
    assert status == 404 and json.loads(raw)["error"]["code"] is None, raw
    status, _, raw = server.request("POST", "/v1/responses", {"model": "default", "input": "x", "truncation": "middle"})
    assert status == 400 and json.loads(raw)["error"]["param"] == "truncation", raw
    status, headers, _ = server.request("GET", CHAT)
    assert status == 405 and "POST" in headers["allow"]


def test_body_too_large(serve):
    small = serve("--gateway.max-body=64KiB", ready=False)
    status, error = error_of(small.request("POST", CHAT, {**OK, "messages": [{"role": "user", "content": "x" * 100_000}]}))
    assert status == 413 and "65536" in error["message"]    # A93
    assert small.request("GET", "/health")[0] == 200


def test_raw_garbage_on_the_socket(server):
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
                 b"A" * 100_000, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZZ\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(junk)
            s.shutdown(socket.SHUT_WR)
            reply = b""
            while piece := s.recv(4096):
                reply += piece
            assert reply == b"" or reply.startswith(b"HTTP/1.1 4"), reply[:80]
    assert server.request("GET", "/health")[0] == 200


def test_two_requests_in_one_packet_are_answered_in_order(server):
    one = json.dumps(OK).encode()
    raw = b"".join(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: pipe-%d\r\ncontent-length: %d\r\n%s\r\n%s"
                   % (i, len(one), b"connection: close\r\n" if i == 1 else b"", one) for i in range(2))
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(raw)
        reply = b""
        while piece := s.recv(65536):
            reply += piece
    assert reply.count(b"HTTP/1.1 200") == 2
    assert 0 < reply.index(b"pipe-0") < reply.index(b"pipe-1")


def test_client_that_goes_away_frees_the_engine(server):
    """A54: streaming and not, the abort reaches the engine and the slot comes back."""
    body = json.dumps({**OK, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
    for payload in (body, body.replace(b'"stream": true', b'"stream": false')):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        s.sendall(request % (len(payload), payload))
        wait_for(lambda: server.metric_sum("nereid_engine_running") >= 1, 30, "request runs")
        s.close()
        wait_for(lambda: server.metric_sum("nereid_engine_running") == 0, 10, "engine is free again")


def test_access_log_has_one_line_and_no_prompt(server):
    secret = "xyzzy-plugh-prompt-text"
    status, headers, _ = server.request("POST", CHAT, {**OK, "messages": [{"role": "user", "content": secret}]},
                                        {"authorization": "Bearer sk-very-secret-key", "x-request-id": "log-test-1"})
    assert status == 200 and headers["x-request-id"] == "log-test-1"
    wait_for(lambda: "log-test-1" in server.log(), 10, "access log line")
    lines = [line for line in server.log().splitlines() if "log-test-1" in line]
    assert len(lines) == 1
    entry = json.loads(lines[0])
    for field in ("status", "queue_ms", "prefill_ms", "first_token_ms", "decode_ms", "cached_tokens", "in_tokens",
                  "out_tokens", "worker", "end"):
        assert field in entry, entry
    assert secret not in server.log() and "sk-very-secret-key" not in server.log()
    assert "decode" in headers["server-timing"]
