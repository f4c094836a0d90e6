"""Failures that other gateways shipped (the cases A...), seen from outside, over all dialects. The scripted engine gives one byte
per token, so every split that can happen does."""

import json
import socket

import pytest

from conftest import SCRIPT, Server, parse_events, wait_for

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "now"}}]


def body_for(path, text, /, **extra):
    if path == RESPONSES:
        return {"model": "scripted", "input": text, **extra}
    return {"model": "scripted", "max_tokens": 4000, "messages": [{"role": "user", "content": text}], **extra}


def chat(server, text, **extra):
    status, _, raw = server.request("POST", CHAT, body_for(CHAT, text, **extra))
    assert status == 200, raw
    return json.loads(raw)["choices"][0]


def text_of(path, server, text, stream, **extra):
    """The answer's text in any dialect, streamed or whole."""
    if not stream:
        raw = json.loads(server.request("POST", path, body_for(path, text, **extra))[2])
        if path == CHAT:
            return raw["choices"][0]["message"]["content"]
        if path == MESSAGES:
            return "".join(b["text"] for b in raw["content"] if b["type"] == "text")
        return "".join(p["text"] for i in raw["output"] if i["type"] == "message" for p in i["content"])
    pieces = []
    for name, data in server.events(path, body_for(path, text, **extra)):
        if path == CHAT and data != "[DONE]" and data["choices"]:
            pieces.append(data["choices"][0]["delta"].get("content") or "")
        elif name == "content_block_delta" and data["delta"]["type"] == "text_delta":
            pieces.append(data["delta"]["text"])
        elif name == "response.output_text.delta":
            pieces.append(data["delta"])
    return "".join(pieces)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_A39_A41_text_is_whole_characters_and_the_same_in_both_modes(scripted, path):
    want = "\u65e5\u672c\u8a9e \U0001F468\u200d\U0001F469\u200d\U0001F467 \u00e9\u00fc \u0928\u092e\u0938\u094d\u0924\u0947"
    assert text_of(path, scripted, "many-scripts", True) == text_of(path, scripted, "many-scripts", False) == want


@pytest.mark.parametrize("path, name", [(CHAT, "stop"), (MESSAGES, "stop_sequences"), (RESPONSES, "stop")])
@pytest.mark.parametrize("stop, want", [(["ee fo"], "one two thr"), (["nothing", "three four five"], "one two "), (["two", "one two"], "")])
def test_A33_A34_A35_A37_stop_strings(scripted, path, name, stop, want):
    for stream in (True, False):
        assert text_of(path, scripted, "say-slowly", stream, **{name: stop}) == want


def test_A38_held_text_is_not_lost(scripted):
    for stream in (True, False):
        assert text_of(CHAT, scripted, "half-a-call", stream, stop=["STOP"], tools=TOOLS) == "Look: <tool_call is what I would write, "


def test_A1_A5_A6_A17_A18_A19_A21_tool_calls_in_a_chat_stream(scripted):
    events = scripted.events(CHAT, body_for(CHAT, "no-arguments", tools=TOOLS))
    calls, reasons = {}, []
    for _, data in events[:-1]:
        choice = data["choices"][0]
        assert choice["index"] == 0 and "finish_reason" in choice    # A14, A25
        reasons.append(choice["finish_reason"])
        for delta in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(delta["index"], {"arguments": ""})    # A17
            assert ("id" in delta) == ("name" in delta["function"]) == ("type" in delta)    # A19: once, together
            if "id" in delta:
                assert "id" not in call
                call.update(id=delta["id"], name=delta["function"]["name"])
            call["arguments"] += delta["function"].get("arguments", "")
    assert reasons[-1] == "tool_calls" and not any(reasons[:-1])
    assert [(c["name"], json.loads(c["arguments"])) for c in calls.values()] == [("now", {}), ("get_weather", {"town": "Oslo"})]
    assert len({c["id"] for c in calls.values()}) == 2    # A21
    whole = chat(scripted, "no-arguments", tools=TOOLS)
    assert [c["function"]["arguments"] for c in whole["message"]["tool_calls"]] == [c["arguments"] for c in calls.values()]


def test_A86_A87_reasoning_is_apart(scripted):
    whole = chat(scripted, "think-first")
    assert whole["message"]["reasoning_content"] == "Six times seven." and whole["message"]["content"] == "It is 42."
    deltas = [d["choices"][0]["delta"] for _, d in scripted.events(CHAT, body_for(CHAT, "think-first"))[:-1]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == "Six times seven."
    assert "".join(d.get("content") or "" for d in deltas) == "It is 42."


def test_A45_A46_A47_logprobs_of_byte_tokens(scripted):
    content = chat(scripted, "many-scripts", logprobs=True, top_logprobs=2)["logprobs"]["content"]
    assert bytes(b for e in content for b in e["bytes"]).decode() == chat(scripted, "many-scripts")["message"]["content"]
    assert all(len(e["top_logprobs"]) == 2 for e in content)
    assert all(e["top_logprobs"] == [] for e in chat(scripted, "say-hi", logprobs=True)["logprobs"]["content"])


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [True, False])
def test_A54_a_client_that_goes_away_frees_the_engine(scripted, path, stream):
    body = json.dumps(body_for(path, "say-forever", stream=stream)).encode()
    with socket.create_connection(("127.0.0.1", scripted.port), timeout=20) as s:
        s.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body))
        wait_for(lambda: scripted.metric_sum("nereid_engine_running") >= 1, 20, "request runs")
    wait_for(lambda: scripted.metric_sum("nereid_engine_running") == 0, 10, "engine is free again")


def test_A57_A58_silence_is_filled_in_every_dialect():
    server = Server(["serve", "--port", "0", "--engine", "scripted", "--script", str(SCRIPT), "--gateway.keepalive=5ms"])
    try:
        for path in (CHAT, MESSAGES, RESPONSES):
            _, _, raw = server.request("POST", path, {**body_for(path, "say-slowly"), "stream": True})
            assert raw.count(b": keep-alive\n\n") > 3 and b"ten" in raw
    finally:
        assert server.stop() == 0
        server.dir.cleanup()


def test_A69_A70_A71_A101_odd_history(scripted):
    history = [
        {"role": "developer", "content": "rules"}, {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"cmd": '}}]},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "assistant", "tool_calls": [{"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "b"}, {"role": "user", "content": "say-hi"}]
    status, _, raw = scripted.request("POST", CHAT, {"model": "scripted", "messages": history})
    assert status == 200, raw
    status, _, raw = scripted.request("POST", "/tokenize", {"messages": history})
    rendered = bytes(json.loads(raw)["tokens"]).decode()
    assert "<|system|>\nrules" in rendered and "None" not in rendered and '<call f {"cmd": >' in rendered


@pytest.mark.parametrize("path, content", [
    (CHAT, [{"type": "image_url", "image_url": {"url": "data:image/webp;base64,%s"}}]),
    (MESSAGES, [{"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "%s"}}]),
    (RESPONSES, None)])
def test_A93_A94_A95_large_images_get_as_far_as_the_model(scripted, path, content):
    data = "QUJD" * 1_000_000    # 4 MB: not 413, and webp is a type like any other
    if path == RESPONSES:
        body = {"model": "scripted", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": f"data:image/webp;base64,{data}"}]}]}
    else:
        body = json.loads(json.dumps(body_for(path, content)).replace("%s", data))
    status, _, raw = scripted.request("POST", path, body)
    assert status == 400 and "does not take images" in json.loads(raw)["error"]["message"], raw[:300]


def test_A97_A99_forced_tools_are_refused_up_front_where_they_cannot_be(scripted):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        for stream in (True, False):
            status, _, raw = scripted.request("POST", CHAT, body_for(CHAT, "x", tools=TOOLS, tool_choice=choice, stream=stream))
            assert status == 400 and json.loads(raw)["error"]["param"] == "tool_choice", raw


@pytest.mark.parametrize("effort", ["max", "none", "ultra-of-2030"])
def test_A81_any_effort_is_taken_before_the_headers(scripted, effort):
    answer = json.loads(scripted.request("POST", RESPONSES, body_for(RESPONSES, "say-hi", reasoning={"effort": effort}))[2])
    assert answer["reasoning"]["effort"] == effort and answer["status"] == "completed"
    assert scripted.request("POST", RESPONSES, body_for(RESPONSES, "say-hi", reasoning={"effort": "x" * 40}))[0] == 400


def test_A98_one_call_when_parallel_calls_are_off(scripted):
    assert len(chat(scripted, "no-arguments", tools=TOOLS, parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_A59_A62_schemas_that_cannot_be_enforced_are_refused(scripted):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for path, extra in ((CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
                        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
                        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}})):
        status, _, raw = scripted.request("POST", path, body_for(path, "x", **extra))
        assert status == 400, (path, raw)


def test_A63_A67_a_tool_s_schema_never_refuses_an_auto_request(server):
    """With an engine that enforces schemas: what it cannot enforce it does not hold an `auto` request to."""
    odd = {"type": "object", "properties": {"a": {"type": "array", "minItems": 3, "items": {"type": "string", "pattern": r"^\d\w\s$"}}},
           "patternProperties": {"^x": {}}, "uniqueItems": True, "not": {"required": ["b"]}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    body = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "tools": tools}
    status, _, raw = server.request("POST", "/v1/chat/completions", body)
    assert status == 200 and json.loads(raw)["usage"]["completion_tokens"] > 0, raw


def test_state_survives_a_restart(tmp_path):
    """Responses and sealed reasoning, in an SQLite file."""
    args = ["serve", "--port", "0", "--engine", "scripted", "--script", str(SCRIPT), "--state", str(tmp_path / "state.db")]
    first = Server(args)
    made = first.client().responses.create(model="scripted", input="think-first", include=["reasoning.encrypted_content"])
    running = first.client().responses.create(model="scripted", input="say-forever", background=True)
    first.stop(number=9)
    second = Server(args)
    try:
        oai = second.client()
        assert oai.responses.retrieve(made.id).output_text == "It is 42."
        assert wait_for(lambda: oai.responses.retrieve(running.id).status == "in_progress", what="taken up again")
        assert oai.responses.cancel(running.id).status == "cancelled"
        turn = [{"role": "user", "content": "q"}, {**made.output[0].model_dump(), "content": []}, {"role": "assistant", "content": "a"}]
        with_it = oai.responses.input_tokens.count(model="scripted", input=turn).input_tokens
        assert with_it > oai.responses.input_tokens.count(model="scripted", input=[turn[0], turn[2]]).input_tokens
    finally:
        assert second.stop() == 0
        first.dir.cleanup()
        second.dir.cleanup()


@pytest.fixture
def mortal(tmp_path):
    """mortal() starts a service on one state database; each is the next life of the one before."""
    lives = []

    def start():
        life = Server(["serve", "--port", "0", "--engine", "scripted", "--script", str(SCRIPT), "--state", str(tmp_path / "state.db")])
        lives.append(life)
        return life

    yield start
    for life in lives:
        life.stop(number=9 if life is not lives[-1] else 15)
        life.dir.cleanup()


def test_a_background_response_survives_kill_9(mortal):
    first = mortal()
    made = first.client().responses.create(model="scripted", input="say-slowly", background=True)
    wait_for(lambda: first.client().responses.retrieve(made.id).status == "in_progress", what="running")
    first.process.kill()
    first.process.wait()
    oai = mortal().client()
    done = wait_for(lambda: (r := oai.responses.retrieve(made.id)).status not in ("queued", "in_progress") and r, what="the end")
    assert done.status == "completed" and done.output_text.startswith("one two three") and done.created_at == made.created_at
    events = list(oai.responses.retrieve(made.id, stream=True))
    assert events[-1].type == "response.completed"


def test_batches_survive_kill_9_and_go_on_where_they_were(mortal):
    first = mortal()
    oai = first.client()
    lines = [json.dumps({"custom_id": f"l{i}", "method": "POST", "url": CHAT, "body": body_for(CHAT, "say-slowly")}) for i in range(12)]
    file = oai.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = oai.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    claude = first.anthropic()
    theirs = claude.messages.batches.create(requests=[
        {"custom_id": f"m{i}", "params": {**body_for(MESSAGES, "say-slowly"), "max_tokens": 100}} for i in range(12)])
    wait_for(lambda: oai.batches.retrieve(batch.id).request_counts.completed >= 4, what="some lines")
    wait_for(lambda: claude.messages.batches.retrieve(theirs.id).request_counts.succeeded >= 4, what="some messages")
    first.process.kill()
    first.process.wait()
    second = mortal()
    oai, claude = second.client(), second.anthropic()
    done = wait_for(lambda: (b := oai.batches.retrieve(batch.id)).status in ("completed", "failed") and b, what="the batch's end")
    assert done.status == "completed" and done.request_counts.completed == 12
    out = [json.loads(line) for line in oai.files.content(done.output_file_id).text.splitlines()]
    assert [o["custom_id"] for o in out] == [f"l{i}" for i in range(12)]
    assert all(o["response"]["body"]["choices"][0]["message"]["content"].endswith("ten") for o in out)
    wait_for(lambda: claude.messages.batches.retrieve(theirs.id).processing_status == "ended", what="the messages' end")
    results = list(claude.messages.batches.results(theirs.id))
    assert [r.custom_id for r in results] == [f"m{i}" for i in range(12)] and all(r.result.type == "succeeded" for r in results)
    ran = sum(n for name, n in second.metrics().items() if name.startswith("nereid_gateway_requests_total{") and
              any(f'route="{route}"' in name for route in ("chat_completions", "messages")))
    assert 0 < ran <= 24 - 8, ran    # what was answered is not asked again


def test_A53_cached_tokens_reach_the_client_in_a_stream(server):
    text = "Tell me of the sea. " * 60
    for _ in range(2):
        events = server.events(CHAT, {"model": "default", "max_tokens": 2, "messages": [{"role": "user", "content": text}],
                                      "stream_options": {"include_usage": True}})
    usage = next(data["usage"] for _, data in events if data != "[DONE]" and data.get("usage"))
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 64
