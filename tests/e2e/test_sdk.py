"""The official openai SDK against the running service."""

import base64
import concurrent.futures
import json
import struct

import openai
import pytest

NYMPH = [{"role": "user", "content": "Name three sea nymphs."}]


def stream_text(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_models(client):
    ids = [m.id for m in client.models.list()]
    assert "SmolLM2-135M-Instruct.Q4_1" in ids
    assert client.models.retrieve(ids[0]).id == ids[0]


def test_chat_answers_and_counts(client):
    answer = client.chat.completions.create(model="default", messages=NYMPH, max_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content.strip()
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


def test_stream_equals_whole_answer(client):
    options = dict(model="default", messages=NYMPH, max_tokens=40, temperature=0.8, seed=7)
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    assert stream_text(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])    # A25
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens    # A50
    assert all(c.usage is None for c in chunks[:-1])


def test_seed_repeats_and_another_seed_differs(client):
    def run(seed):
        return client.chat.completions.create(model="default", messages=NYMPH, max_tokens=32, temperature=1.2,
                                              seed=seed).choices[0].message.content
    assert run(1) == run(1)
    assert len({run(seed) for seed in range(2, 6)}) > 1


def test_answer_does_not_depend_on_neighbours_or_cache(client):
    """The determinism rule, seen from outside: cold, warm and crowded give the same text."""
    def run(i):
        messages = [{"role": "system", "content": "You are a careful clerk. " * 30},
                    {"role": "user", "content": f"Tell me about the number {i}."}]
        return client.chat.completions.create(model="default", messages=messages, max_tokens=24, temperature=0.9,
                                              seed=i).choices[0].message.content
    alone = [run(i) for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        crowded = list(pool.map(run, reversed(range(6))))
    assert crowded[::-1] == alone


def test_turns_reuse_the_prefix(client):
    history = [{"role": "system", "content": "Answer in one short sentence. " * 40}]
    cached = []
    for turn in range(3):
        history.append({"role": "user", "content": f"Question {turn}: what is the sea?"})
        answer = client.chat.completions.create(model="default", messages=history, max_tokens=16, temperature=0)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        history.append({"role": "assistant", "content": answer.choices[0].message.content})
    assert cached[0] % 64 == 0 and 0 < cached[1] <= cached[2], cached
    last = list(client.chat.completions.create(model="default", messages=history[:-1], max_tokens=4, stream=True,
                                               stream_options={"include_usage": True}))[-1]
    assert last.usage.prompt_tokens_details.cached_tokens >= cached[2]    # A53: in a stream too


def test_stop_string_is_cut_in_both_modes(client):
    options = dict(model="default", messages=[{"role": "user", "content": "Count: one, two, three, four, five"}],
                   max_tokens=60, temperature=0)
    plain = client.chat.completions.create(**options).choices[0].message.content
    assert len(plain) > 8
    stop = plain[5:9]
    cut = client.chat.completions.create(stop=[stop], **options)
    assert cut.choices[0].message.content == plain[:plain.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(stop=[stop], stream=True, **options))
    assert stream_text(chunks) == plain[:plain.index(stop)]    # A35


def test_several_choices(client):
    answer = client.chat.completions.create(model="default", messages=NYMPH, max_tokens=12, temperature=1, n=3, seed=3)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens <= 36
    seen = {}
    for chunk in client.chat.completions.create(model="default", messages=NYMPH, max_tokens=12, temperature=1, n=3, seed=3,
                                                stream=True):
        for choice in chunk.choices:
            seen[choice.index] = seen.get(choice.index, "") + (choice.delta.content or "")
    assert [seen[i] for i in range(3)] == [c.message.content for c in answer.choices]    # A15


def test_logprobs(client):
    answer = client.chat.completions.create(model="default", messages=NYMPH, max_tokens=6, temperature=0, logprobs=True,
                                            top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 6
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-4    # greedy takes the first
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    assert len({e.top_logprobs[0].token for e in entries}) > 1    # A47


def test_logit_bias(server, client):
    token = json.loads(server.request("POST", "/tokenize", {"prompt": " sea"})[2])["tokens"]
    assert len(token) == 1
    def ask(bias):
        return client.chat.completions.create(model="default", messages=NYMPH, max_tokens=4, temperature=0, logit_bias=bias).choices[0].message.content
    assert ask({str(token[0]): 100}) == " sea" * 4 != ask({str(token[0]): -100})


def test_reasoning_is_counted_apart(scripted):
    oai, messages = scripted.client(), [{"role": "user", "content": "think-first"}]
    chat = oai.chat.completions.create(model="scripted", messages=messages).usage
    assert 0 < chat.completion_tokens_details.reasoning_tokens < chat.completion_tokens
    last = list(oai.chat.completions.create(model="scripted", messages=messages, stream=True, stream_options={"include_usage": True}))[-1]
    assert last.usage == chat
    responses = oai.responses.create(model="scripted", input="think-first").usage
    assert responses.output_tokens_details.reasoning_tokens == chat.completion_tokens_details.reasoning_tokens
    assert responses.output_tokens == chat.completion_tokens


def test_sdk_stream_helper(client):
    with client.chat.completions.stream(model="default", messages=NYMPH, temperature=0, stop=[","], max_tokens=200) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content and final.choices[0].finish_reason == "stop"


def test_completions(client):
    answer = client.completions.create(model="default", prompt="The capital of France is", max_tokens=8, temperature=0)
    assert "Paris" in answer.choices[0].text
    two = client.completions.create(model="default", prompt=["One, two,", "Red, green,"], max_tokens=4, temperature=0)
    assert [c.index for c in two.choices] == [0, 1]
    text = "".join(c.choices[0].text for c in client.completions.create(
        model="default", prompt="The capital of France is", max_tokens=8, temperature=0, stream=True) if c.choices)
    assert text == answer.choices[0].text


def test_completions_of_token_ids(server, client):
    _, _, body = server.request("POST", "/tokenize", {"model": "default", "prompt": "The capital of France is"})
    tokens = json.loads(body)["tokens"]
    by_ids = client.completions.create(model="default", prompt=tokens, max_tokens=6, temperature=0)
    by_text = client.completions.create(model="default", prompt="The capital of France is", max_tokens=6, temperature=0)
    assert by_ids.choices[0].text == by_text.choices[0].text


def test_embeddings(client):
    answer = client.embeddings.create(model="default", input=["a cat", "a kitten", "tax law of 1911"],
                                      encoding_format="float")
    vectors = [item.embedding for item in answer.data]
    assert len({len(v) for v in vectors}) == 1 and len(vectors[0]) == 576
    assert all(abs(sum(x * x for x in v) - 1) < 1e-3 for v in vectors)
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2])
    raw = client.post("/embeddings", body={"model": "default", "input": "a cat", "encoding_format": "base64"}, cast_to=object)
    packed = base64.b64decode(raw["data"][0]["embedding"])
    values = struct.unpack(f"<{len(packed) // 4}f", packed)
    assert max(abs(a - b) for a, b in zip(values, vectors[0])) < 1e-5


def test_tokenize_round_trip(server):
    text = "Nereids: 海の精 🧜‍♀️ café <|im_end|>"
    status, _, body = server.request("POST", "/tokenize", {"model": "default", "prompt": text})
    assert status == 200
    tokens = json.loads(body)["tokens"]
    status, _, body = server.request("POST", "/detokenize", {"model": "default", "tokens": tokens})
    assert status == 200 and json.loads(body)["prompt"] == text


def test_unicode_survives_streaming(client):
    """A39: no U+FFFD where none belongs, every delta is valid text."""
    chunks = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "Repeat exactly: 海 🧜‍♀️ é ü ß 漢字"}], max_tokens=48,
        temperature=0, stream=True)
    text = stream_text(chunks)
    assert text and "\ufffd" not in text


def test_functions_are_answered_as_functions(scripted):
    """OpenAI's deprecated form, both ways; one call where the model makes two."""
    oai, functions = scripted.client(), [{"name": "get_weather", "parameters": {"type": "object"}}]
    asked = dict(model="scripted", messages=[{"role": "user", "content": "weather-in-two-towns"}], functions=functions)
    choice = oai.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
    assert choice.message.function_call.name == "get_weather" and json.loads(choice.message.function_call.arguments) == {"town": "Oslo"}
    deltas = [c.choices[0] for c in oai.chat.completions.create(**asked, stream=True) if c.choices]
    calls = [d.delta.function_call for d in deltas if d.delta.function_call]
    assert calls[0].name == "get_weather" and json.loads("".join(c.arguments or "" for c in calls)) == {"town": "Oslo"}
    assert deltas[-1].finish_reason == "function_call" and not any(d.delta.tool_calls for d in deltas)
    history = [*asked["messages"], choice.message.model_dump(exclude_none=True), {"role": "function", "name": "get_weather", "content": "rain"}]
    assert oai.chat.completions.create(model="scripted", messages=history, functions=functions).choices[0].message.content == "DONE OK"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_roles_change_the_prompt(client, role):
    """A71: a developer message is not dropped."""
    def prompt_tokens(messages):
        return client.chat.completions.create(model="default", messages=messages, max_tokens=1).usage.prompt_tokens
    assert prompt_tokens([{"role": role, "content": "Speak like a pirate, always, in every answer."}] + NYMPH) \
        != prompt_tokens(NYMPH)


def test_sdk_maps_our_errors(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=NYMPH)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="default", messages=NYMPH, temperature=9)
    assert caught.value.param == "temperature"
