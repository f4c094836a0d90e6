"""The checks of the Open Responses compliance suite, re-expressed from its specification: one test for each of its ids, with its
schema's types (open_responses.py) over every answer."""

import json

import pytest

from conftest import red_png
from open_responses import check_response, check_stream

FUNCTION = {"type": "function", "name": "get_weather", "description": "The weather.", "strict": False,
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}


@pytest.fixture
def oai(scripted):
    return scripted.client()


def create(oai, text, **options):
    return oai.responses.create(model="scripted", input=text, **options)


# id: basic-response
def test_basic_response(oai, scripted):
    answer = create(oai, "say-hi")
    assert answer.output_text == "Hi there, friend." and answer.status == "completed"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens    # A51
    assert answer.usage.input_tokens_details.cached_tokens == 0 and answer.usage.output_tokens_details.reasoning_tokens == 0
    raw = check_response(json.loads(scripted.request("POST", "/v1/responses", {"model": "scripted", "input": "say-hi"})[2]))
    assert raw["status"] == "completed"


# id: streaming-response
def test_streaming_response(oai, scripted):
    final = check_stream(scripted.events("/v1/responses", {"model": "scripted", "input": "say-hi"}))
    assert final["status"] == "completed" and final["output"][0]["content"][0]["text"] == "Hi there, friend."
    with oai.responses.stream(model="scripted", input="say-hi") as stream:
        deltas = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert deltas == stream.get_final_response().output_text == "Hi there, friend."


# id: system-prompt
def test_system_prompt(oai):
    """Instructions are seen, and are not carried over to the next turn."""
    first = create(oai, "hello", instructions="Always say-hi.")
    assert first.output_text == "Hi there, friend." and first.instructions == "Always say-hi."
    second = create(oai, "think-first", previous_response_id=first.id)
    assert second.output_text == "It is 42."


# id: tool-calling
def test_tool_calling(oai):
    answer = create(oai, "weather-in-oslo", tools=[FUNCTION])
    reasoning, call = answer.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "I look it up."    # A85
    assert call.type == "function_call" and call.name == "get_weather" and json.loads(call.arguments) == {"town": "Oslo"}
    history = [{"role": "user", "content": "weather-in-oslo"}, *[i.model_dump() for i in answer.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    assert create(oai, history, tools=[FUNCTION]).output_text == "DONE OK"    # A83


# id: tool-calling-streaming
def test_tool_calling_streaming(scripted):
    events = scripted.events("/v1/responses", {"model": "scripted", "input": "weather-in-two-towns", "tools": [FUNCTION]})
    final = check_stream(events)
    calls = [i for i in final["output"] if i["type"] == "function_call"]
    assert [json.loads(c["arguments"])["town"] for c in calls] == ["Oslo", "Rome"]
    assert len({c["call_id"] for c in calls}) == 2
    for call in calls:
        pieces = [d["delta"] for n, d in events if n == "response.function_call_arguments.delta" and d["item_id"] == call["id"]]
        assert "".join(pieces) == call["arguments"]


# id: multi-turn
def test_multi_turn(oai):
    first = create(oai, "heron-test-memory")
    assert create(oai, "do you remember", previous_response_id=first.id).output_text == "I remember the heron."
    third = create(oai, [{"role": "user", "content": "heron-test-memory"},
                         {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "still?"}])
    assert third.output_text == "I remember the heron."


# id: image-input
def test_image_input(seeing):
    url = "data:image/png;base64," + red_png(base64=True)
    content = [{"type": "input_text", "text": "what-do-you-see"}, {"type": "input_image", "image_url": url}]
    body = {"model": "scripted", "input": [{"role": "user", "content": content}]}
    status, _, raw = seeing.request("POST", "/v1/responses", body)
    assert status == 200, raw
    answer = check_response(json.loads(raw))
    assert answer["output"][0]["content"][0]["text"].startswith(f"I see {len(red_png())} bytes")
    assert check_stream(seeing.events("/v1/responses", body))["output"][0]["content"] == answer["output"][0]["content"]


def test_ends_other_than_completed_have_the_same_shape(scripted):
    """incomplete, failed, cancelled and queued answers are responses, too."""
    cut = check_stream(scripted.events("/v1/responses", {"model": "scripted", "input": "say-forever", "max_output_tokens": 16}))
    assert cut["status"] == "incomplete" and cut["incomplete_details"]["reason"] == "max_output_tokens"
    failed = check_stream(scripted.events("/v1/responses", {"model": "scripted", "input": "fail-later"}))
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
    queued = check_response(json.loads(scripted.request("POST", "/v1/responses", {
        "model": "scripted", "input": "say-forever", "background": True})[2]))
    assert queued["status"] in ("queued", "in_progress")
    ended = check_response(json.loads(scripted.request("POST", f"/v1/responses/{queued['id']}/cancel", {})[2]))
    assert ended["status"] == "cancelled"
