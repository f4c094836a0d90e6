"""The matrix of fields: what is implemented or accepted goes through together, what is refused is refused by name. Through the
SDKs of openai and anthropic where they know the field, with the real model."""

import json

import openai
import pytest

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
HI = [{"role": "user", "content": "Say hi."}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}


@pytest.mark.parametrize("stream", [False, True])
def test_chat_takes_all_of_it(server, stream):
    answer = server.client().chat.completions.create(
        model="default", stream=stream, stream_options={"include_usage": True, "include_obfuscation": False} if stream else openai.NOT_GIVEN,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
                  {"role": "user", "content": "Hi", "name": "ann"},
                  {"role": "assistant", "content": None, "refusal": None,
                   "tool_calls": [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]},
                  {"role": "tool", "tool_call_id": "c", "content": "rain"}, *HI],
        max_tokens=50, max_completion_tokens=3, n=2, stop=["\n\n\n"], seed=7, temperature=0.5, top_p=0.9, frequency_penalty=0.1,
        presence_penalty=0.1, logit_bias={"11": -5}, logprobs=True, top_logprobs=2, tools=[TOOL], tool_choice="auto",
        parallel_tool_calls=True, response_format={"type": "text"}, reasoning_effort="low", user="u", safety_identifier="s",
        prompt_cache_key="k", metadata={"a": "b"}, service_tier="auto", store=False, prediction={"type": "content", "content": "x"},
        verbosity="low",
        extra_body={"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.05, "chat_template_kwargs": {"x": 1}, "ignore_eos": False,
                    "stop_token_ids": [1], "cache_salt": "c", "priority": 1, "thinking": {"type": "enabled"}, "prompt_cache_options": {},
                    "moderation": None, "made_up_by_a_client": 1})
    if not stream:
        assert answer.service_tier == "default"
        assert [c.index for c in answer.choices] == [0, 1] and answer.usage.completion_tokens <= 6
        assert answer.choices[0].logprobs.content[0].top_logprobs and answer.system_fingerprint
        return
    chunks = list(answer)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens <= 6
    assert {c.choices[0].index for c in chunks[:-1]} == {0, 1}


@pytest.mark.parametrize("change, param", [
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"), ({"modalities": ["text", "audio"]}, "modalities"),
    ({"web_search_options": {}}, "web_search_options"), ({"n": 1000}, "n"), ({"functions": [TOOL["function"]], "tools": [TOOL]}, "functions"),
    ({"moderation": {"model": "m"}}, "moderation")])
def test_chat_refuses_by_name(server, change, param):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().chat.completions.create(model="default", messages=HI, max_tokens=2, extra_body=change)
    assert refused.value.param == param and refused.value.code in ("unsupported_parameter", "invalid_value")


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "function": {"name": "get_weather"}},
                                    {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                                        {"type": "function", "function": {"name": "get_weather"}}]}}])
def test_tool_choice_in_all_forms(server, choice):
    answer = server.client().chat.completions.create(model="default", messages=HI, max_tokens=60, tools=[TOOL], tool_choice=choice,
                                                     parallel_tool_calls=False)
    calls = answer.choices[0].message.tool_calls
    if choice not in ("none", "auto"):
        assert [c.function.name for c in calls] == ["get_weather"] and json.loads(calls[0].function.arguments) == {}
    if choice == "none":
        assert not calls


# top_p so small that nothing is left to chance: a sampled answer may end before its limit.
def test_responses_takes_all_of_it(server):
    answer = server.client().responses.create(
        model="default", instructions="Be brief.", max_output_tokens=3, temperature=0.5, top_p=0.01, top_logprobs=1, store=False,
        include=["reasoning.encrypted_content", "message.output_text.logprobs"], parallel_tool_calls=True, max_tool_calls=3,
        metadata={"a": "b"}, user="u", safety_identifier="s", prompt_cache_key="k", service_tier="auto", truncation="disabled",
        reasoning={"effort": "low", "summary": "auto"}, text={"format": {"type": "text"}, "verbosity": "low"}, tool_choice="auto",
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False},
               {"type": "custom", "name": "c"}, {"type": "web_search"}],
        input=[{"role": "developer", "content": "x"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
               {"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "of_the_future", "x": 1},
               {"type": "local_shell_call", "call_id": "l", "id": "l", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
               {"role": "user", "content": "Say hi."}],
        extra_body={"client_metadata": {"x": "y"}, "context_management": [], "access_programs": [], "prompt_cache_options": {"prewarm": True}})
    assert answer.status == "incomplete" and answer.metadata == {"a": "b"} and answer.max_tool_calls == 3
    assert answer.output[0].content[0].logprobs


@pytest.mark.parametrize("change, param", [
    ({"prompt": {"id": "pmpt_1"}}, "prompt"), ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "conversation"), ({"background": True, "store": False}, "background")])
def test_responses_refuses_by_name(server, change, param):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client().responses.create(model="default", input="x", max_output_tokens=2, extra_body=change)
    assert refused.value.param == param, refused.value.body


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "adaptive", "display": "updates"}, {"type": "disabled"},
                                      {"type": "between_tools"}, {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}])
def test_messages_takes_all_of_it(server, thinking):
    status, _, raw = server.request("POST", MESSAGES + "?beta=true", {
        "model": "default", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 10, "stop_sequences": ["\n\n\n"], "thinking": thinking,
        "output_config": {"effort": "max"}, "metadata": {"user_id": "{}"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"},
        "container": "c", "diagnostics": {}, "inference_geo": "eu", "speed": "fast", "user_profile_id": "u", "workspace_id": "w",
        "context_management": {"edits": []}, "mcp_servers": [], "fallbacks": [], "betas": ["x"], "tool_choice": {"type": "auto"},
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "f", "input_schema": {"type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema"},
                   "strict": False, "defer_loading": True, "eager_input_streaming": True, "input_examples": [{}]},
                  {"type": "web_search_20250305", "name": "web_search"}],
        "messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Now briefly."},
                     {"role": "assistant", "content": [
                         {"type": "thinking", "thinking": "x", "signature": "foreign"}, {"type": "redacted_thinking", "data": "y"},
                         {"type": "tool_use", "id": "t", "name": "f", "input": {}}, {"type": "server_tool_use", "id": "s", "name": "w", "input": {}}]},
                     {"role": "user", "content": [
                         {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [{"type": "text", "text": "no"},
                                                                                                  {"type": "tool_reference", "tool_name": "f"}]},
                         {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "found"}]},
                         {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "paper"}},
                         {"type": "container_upload", "file_id": "f"}, {"type": "text", "text": "Say hi."}]}]},
        {"anthropic-version": "2199-01-01", "anthropic-beta": "a,b"})
    assert status == 200, raw
    answer = json.loads(raw)
    assert answer["type"] == "message" and set(answer["usage"]) >= {
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"}


def test_completions_takes_all_of_it(server):
    answer = server.client().completions.create(
        model="default", prompt=["The sea", "A heron"], max_tokens=3, n=2, stop=["\n\n\n"], seed=1, temperature=0.5, top_p=0.9, logprobs=2,
        frequency_penalty=0.1, presence_penalty=0.1, logit_bias={"11": -5}, user="u", extra_body={"top_k": 3, "min_p": 0.1})
    assert [c.index for c in answer.choices] == [0, 1, 2, 3] and answer.choices[0].logprobs.tokens
    echoed = server.client().completions.create(model="default", prompt="The sea", max_tokens=2, echo=True)
    assert echoed.choices[0].text.startswith("The sea")


def test_headers_of_errors(server):
    status, headers, raw = server.request("POST", CHAT, {"model": "no-such", "messages": HI})
    error = json.loads(raw)["error"]
    assert status == 404 and error["code"] == "model_not_found" and headers["x-request-id"] and "openai-processing-ms" in headers
    status, headers, raw = server.request("POST", MESSAGES, {"model": "no-such", "max_tokens": 1, "messages": HI})
    answer = json.loads(raw)
    assert status == 404 and answer["error"]["type"] == "not_found_error" and answer["request_id"] == headers["request-id"]
