"""The Messages API through the official anthropic SDK, and what the SDK does not look at."""

import json

import anthropic
import pytest

HI = [{"role": "user", "content": "say-hi"}]
TOOL = {"name": "get_weather", "description": "The weather.",
        "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}


def create(claude, text, **options):
    return claude.messages.create(model="scripted", max_tokens=options.pop("max_tokens", 500),
                                  messages=[{"role": "user", "content": text}], **options)


def test_answer_and_stream_are_the_same(claude):
    whole = create(claude, "say-hi")
    assert whole.content[0].text == "Hi there, friend." and whole.stop_reason == "end_turn"
    assert whole.type == "message" and whole.role == "assistant" and whole.id.startswith("msg_")
    with claude.messages.stream(model="scripted", max_tokens=500, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert [b.model_dump() for b in final.content] == [b.model_dump() for b in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens > 0


def test_thinking_has_a_signature_and_round_trips(claude):
    """A89, A91: what we gave comes back and is rendered; an omitted thought comes back out of its signature."""
    for options in ({}, {"thinking": {"type": "adaptive", "display": "omitted"}}):
        first = create(claude, "think-first", **options)
        thought = first.content[0]
        assert thought.type == "thinking" and thought.signature
        assert thought.thinking == ("" if options else "Six times seven.")
        assert first.content[1].text == "It is 42."
        assert first.usage.output_tokens_details.thinking_tokens > 0
        history = [{"role": "user", "content": "think-first"},
                   {"role": "assistant", "content": [b.model_dump() for b in first.content]},
                   {"role": "user", "content": "say-hi"}]
        with_thought = claude.messages.count_tokens(model="scripted", messages=history).input_tokens
        del history[1]["content"][0]
        assert with_thought == claude.messages.count_tokens(model="scripted", messages=history).input_tokens + len(
            "<think>Six times seven.</think>\n")


def test_foreign_signature_is_left_out_not_refused(claude):
    """A90."""
    answer = claude.messages.create(model="scripted", max_tokens=50, messages=[
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "theirs", "signature": "SIG_OPAQUE_1"},
                                          {"type": "redacted_thinking", "data": "AAAA"},
                                          {"type": "text", "text": "ok"}]},
        {"role": "user", "content": "say-hi"}])
    assert answer.content[0].text == "Hi there, friend."


def test_tool_use_streamed_and_whole(claude):
    """A7, A9, A11: whole JSON, tool_use, no empty text block."""
    whole = create(claude, "weather-in-oslo", tools=[TOOL])
    assert [b.type for b in whole.content] == ["thinking", "tool_use"]
    assert whole.content[1].input == {"town": "Oslo"} and whole.stop_reason == "tool_use"
    with claude.messages.stream(model="scripted", max_tokens=500, tools=[TOOL],
                                messages=[{"role": "user", "content": "weather-in-oslo"}]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[1].input == {"town": "Oslo"} and final.stop_reason == "tool_use"
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


def test_parallel_tools_have_their_own_ids_and_the_loop_closes(claude):
    first = create(claude, "weather-in-two-towns", tools=[TOOL])
    calls = [b for b in first.content if b.type == "tool_use"]
    assert [c.input["town"] for c in calls] == ["Oslo", "Rome"] and len({c.id for c in calls}) == 2    # A21
    second = claude.messages.create(model="scripted", max_tokens=500, tools=[TOOL], messages=[
        {"role": "user", "content": "weather-in-two-towns"},
        {"role": "assistant", "content": [b.model_dump() for b in first.content]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": "rain"},
            {"type": "tool_result", "tool_use_id": calls[1].id, "content": [{"type": "text", "text": "sun"}], "is_error": False},
            {"type": "text", "text": "and now?"}]}])
    assert second.content[-1].text == "DONE OK"


def test_one_call_when_parallel_use_is_disabled(claude):
    """A98."""
    answer = create(claude, "weather-in-two-towns", tools=[TOOL],
                    tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert len([b for b in answer.content if b.type == "tool_use"]) == 1


def test_count_tokens_is_what_the_prompt_is_billed(claude):
    request = dict(model="scripted", system="You are kind.", tools=[TOOL], messages=[
        {"role": "user", "content": "say-hi"}, {"role": "system", "content": "Mind the gap."},
        {"role": "user", "content": [{"type": "text", "text": "and again"}]}])
    counted = claude.messages.count_tokens(**request).input_tokens
    assert counted == claude.messages.create(max_tokens=5, **request).usage.input_tokens


def test_stop_sequence_and_max_tokens(claude):
    stopped = create(claude, "say-hi", stop_sequences=["there"])
    assert stopped.content[0].text == "Hi " and stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "there"
    assert create(claude, "say-hi", max_tokens=3).stop_reason == "max_tokens"
    create(claude, "say-hi", max_tokens=100_000_000)    # A61: more than the context is what is left of it


def test_system_messages_keep_their_place(scripted):
    """A73, A74, A75: a turn's prompt is the beginning of the next; the billing header is not in it."""
    def tokens(messages, header):
        body = {"model": "scripted", "messages": messages, "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={header};"},
            {"type": "text", "text": "You are a clerk.", "cache_control": {"type": "ephemeral"}}]}
        status, _, raw = scripted.request("POST", "/v1/messages/count_tokens?beta=true", body)
        assert status == 200, raw
        return json.loads(raw)["input_tokens"]
    turn = [{"role": "user", "content": [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]},
            {"role": "system", "content": "Only short answers."}]
    assert tokens(turn, "aaa") == tokens(turn, "bbbbbbbbbb")
    assert tokens([{"role": "user", "content": "one"}, turn[1]], "a") == tokens(turn, "a")
    joined = {"model": "scripted", "messages": turn, "system": "x-anthropic-billing-header: cch=a;\nYou are a clerk."}
    assert json.loads(scripted.request("POST", "/v1/messages/count_tokens", joined)[2])["input_tokens"] == tokens(turn, "a")


def test_errors_are_anthropic_s(scripted, claude):
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="nope", max_tokens=5, messages=HI)
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(model="scripted", max_tokens=5, messages=[])
    assert bad.value.body["type"] == "error" and bad.value.body["error"]["type"] == "invalid_request_error"
    status, headers, raw = scripted.request("POST", "/v1/messages", {
        "model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "refuse-now"}]})
    error = json.loads(raw)
    assert status == 529 and error["error"]["type"] == "overloaded_error" and headers["retry-after"]
    assert headers["request-id"] == error["request_id"] and headers["x-should-retry"] == "true"
    status, _, raw = scripted.request("POST", "/v1/messages", {
        "model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "x" * 2_100_000}]})
    assert status == 400 and "prompt is too long: 21" in json.loads(raw)["error"]["message"]    # A61
    assert "> 2000000 maximum" in json.loads(raw)["error"]["message"]


def test_failure_in_the_middle_is_an_error_event(scripted, claude):
    """A26, A103: a stream never just ends."""
    events = scripted.events("/v1/messages", {"model": "scripted", "max_tokens": 99,
                                              "messages": [{"role": "user", "content": "fail-later"}]})
    assert events[0][0] == "message_start" and events[-1][0] == "error"
    assert events[-1][1]["error"]["type"] == "api_error"
    assert not any(name == "message_stop" for name, _ in events)
    assert all(name == data["type"] for name, data in events)
    with pytest.raises(anthropic.APIStatusError):
        with claude.messages.stream(model="scripted", max_tokens=99,
                                    messages=[{"role": "user", "content": "fail-later"}]) as stream:
            for _ in stream:
                pass


def test_models_list_satisfies_both_sdks(scripted, claude):
    assert "scripted" in [m.id for m in claude.models.list()]
    assert "scripted" in [m.id for m in scripted.client().models.list()]
    assert claude.models.retrieve("scripted").display_name


def test_models_in_pages_and_with_their_limits(scripted, claude):
    whole = scripted.client().models.list()
    ids = [m.id for m in whole.data]
    assert len(ids) > 1 and whole.has_more is False
    first = claude.models.list(limit=1)
    assert [m.id for m in first.data] == ids[:1] and first.has_more and first.last_id == ids[0]
    assert [m.id for m in first] == ids, "the SDK goes on page by page"
    assert [m.id for m in claude.models.list(after_id=ids[0]).data] == ids[1:]
    before = claude.models.list(limit=1, before_id=ids[-1])
    assert [m.id for m in before.data] == ids[-2:-1]
    model = claude.models.retrieve("scripted")
    assert model.max_input_tokens == model.max_tokens == 2_000_000 and model.lifecycle == "active"
    assert json.loads(scripted.request("GET", "/v1/models/scripted")[2])["capabilities"]["limits"]["context_tokens"] == 2_000_000    # ours stay
    assert claude.models.with_raw_response.list().headers["request-id"]
    assert [m.id for m in claude.beta.models.list(limit=1)] == ids and claude.beta.models.retrieve("scripted").max_tokens == 2_000_000
    with pytest.raises(anthropic.NotFoundError) as none:
        claude.models.retrieve("nope")
    assert none.value.body["type"] == "error" and none.value.request_id == none.value.body["request_id"]


@pytest.mark.parametrize("change, param", [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": "x"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                                                              "data": "***"}}]}]}, "messages[0].content[0].image.source.data"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"), ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"temperature": -1}, "temperature"), ({"stop_sequences": "x"}, "stop_sequences"), ({"system": 5}, "system"),
])
def test_bad_field(scripted, change, param):
    body = {"model": "scripted", "max_tokens": 5, "messages": HI, **change}
    status, _, raw = scripted.request("POST", "/v1/messages", body)
    error = json.loads(raw)["error"]
    assert status == 400 and error["type"] == "invalid_request_error" and param in error["message"], raw
