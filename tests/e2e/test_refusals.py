"""What an upstream server marks as the model's refusal stays one in all dialects, streamed and whole."""

import json

import pytest

from conftest import Server, parse_events
from fake_server import fake_server
from open_responses import check_response, check_stream

WORDS = ["I cannot", " do that."]


def upstream(_, path, raw):
    if not path.endswith("/chat/completions"):
        return 404, "application/json", b"{}"
    ask = json.loads(raw)
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    said = {"role": "assistant", "content": None, "refusal": WORDS}
    if any(m.get("content") == "what-came-back" for m in ask["messages"]):
        said = {"role": "assistant", "content": [json.dumps([m["content"] for m in ask["messages"] if m["role"] == "assistant"])], "refusal": None}
    key = "refusal" if said["refusal"] else "content"
    if not ask.get("stream"):
        message = {**said, key: "".join(said[key])}
        return 200, "application/json", json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}).encode()
    chunks = [{"choices": [{"index": 0, "delta": {**said, key: piece}, "finish_reason": None}]} for piece in said[key]]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    return 200, "text/event-stream", ("".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n").encode()


@pytest.fixture(scope="module")
def front():
    with fake_server(upstream) as url:
        server = Server(["gateway", "--port", "0", "--backend", url, "--model-name", "m"])
        yield server
        assert server.stop() == 0
        server.dir.cleanup()


ASK = [{"role": "user", "content": "x"}]


def test_chat(front):
    oai = front.client()
    message = oai.chat.completions.create(model="m", messages=ASK).choices[0].message
    assert message.refusal == "".join(WORDS) and message.content is None
    chunks = list(oai.chat.completions.create(model="m", messages=ASK, stream=True))
    assert [c.choices[0].delta.refusal for c in chunks if c.choices and c.choices[0].delta.refusal] == WORDS
    with oai.chat.completions.stream(model="m", messages=ASK) as stream:
        assert stream.get_final_completion().choices[0].message.refusal == "".join(WORDS)


def test_responses(front):
    oai = front.client()
    check_response(json.loads(front.request("POST", "/v1/responses", {"model": "m", "input": "x"})[2]))
    whole = oai.responses.create(model="m", input="x")
    assert whole.output[0].content[0].type == "refusal" and whole.output[0].content[0].refusal == "".join(WORDS)
    raw = front.request("POST", "/v1/responses", {"model": "m", "input": "x", "stream": True})[2]
    final = check_stream(parse_events(raw))
    assert final["output"][0]["content"] == [{"type": "refusal", "refusal": "".join(WORDS)}]
    with oai.responses.stream(model="m", input="x") as stream:
        assert [e.delta for e in stream if e.type == "response.refusal.delta"] == WORDS
    # In the next turn the server gets it back as what it was.
    again = oai.responses.create(model="m", input="what-came-back", previous_response_id=whole.id)
    assert json.loads(again.output_text) == [[{"type": "refusal", "refusal": "".join(WORDS)}]]


def test_messages(front):
    status, _, raw = front.request("POST", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": ASK})
    message = json.loads(raw)
    assert status == 200 and message["stop_reason"] == "refusal" and message["content"] == [{"type": "text", "text": "".join(WORDS)}]
    raw = front.request("POST", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": ASK, "stream": True})[2]
    events = parse_events(raw)
    assert [d["delta"]["text"] for n, d in events if n == "content_block_delta"] == WORDS
    assert next(d for n, d in events if n == "message_delta")["delta"]["stop_reason"] == "refusal"


def test_a_refusal_is_no_summary(front):
    status, _, raw = front.request("POST", "/v1/responses/compact", {"model": "m", "input": "x"})
    assert status == 500 and "no summary" in json.loads(raw)["error"]["message"], raw
