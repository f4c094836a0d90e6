"""What Open Responses (openresponses.org, its OpenAPI document) says of a response, its items and its events, as checks. Types
are given by example: a type, a tuple of types, a set of words, a function."""

NUMBER, NONE = (int, float), type(None)
TEXT_OR_NONE, INT_OR_NONE = (str, NONE), (int, NONE)
STATUS = {"completed", "failed", "in_progress", "cancelled", "queued", "incomplete"}
ITEM_STATUS = {"in_progress", "completed", "incomplete"}


def check(value, wanted, where):
    if callable(wanted) and not isinstance(wanted, type):
        wanted(value, where)
    elif isinstance(wanted, set):
        assert value in wanted, f"{where}: {value!r} is none of {sorted(wanted)}"
    elif isinstance(wanted, dict):
        assert isinstance(value, dict), f"{where}: {value!r} is no object"
        for key, inner in wanted.items():
            assert key in value, f"{where}: '{key}' is missing"
            check(value[key], inner, f"{where}.{key}")
    else:
        assert isinstance(value, wanted), f"{where}: {value!r} is no {wanted}"
        types = wanted if isinstance(wanted, tuple) else (wanted,)
        assert not isinstance(value, bool) or bool in types, f"{where}: a boolean"


def each(wanted):
    def run(value, where):
        assert isinstance(value, list), f"{where}: no list"
        for i, one in enumerate(value):
            check(one, wanted, f"{where}[{i}]")
    return run


def maybe(wanted):
    return lambda value, where: value is None or check(value, wanted, where)


def part(value, where):
    check(value, {"type": {"output_text", "refusal", "reasoning_text", "summary_text"}}, where)
    if value["type"] == "output_text":
        check(value, {"text": str, "annotations": list, "logprobs": list}, where)
    else:
        check(value, {"refusal" if value["type"] == "refusal" else "text": str}, where)


ITEMS = {
    "message": {"id": str, "role": {"assistant"}, "status": ITEM_STATUS, "content": each(part)},
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": ITEM_STATUS},
    "custom_tool_call": {"id": str, "call_id": str, "name": str, "input": str},
    "reasoning": {"id": str, "summary": each(part)},
}


def item(value, where):
    check(value, {"type": set(ITEMS)}, where)
    check(value, ITEMS[value["type"]], where)


USAGE = {"input_tokens": int, "input_tokens_details": {"cached_tokens": int}, "output_tokens": int,
         "output_tokens_details": {"reasoning_tokens": int}, "total_tokens": int}
RESPONSE = {
    "id": str, "object": {"response"}, "created_at": int, "completed_at": INT_OR_NONE, "status": STATUS,
    "incomplete_details": maybe({"reason": str}), "model": str, "previous_response_id": TEXT_OR_NONE,
    "instructions": (str, list, NONE), "output": each(item), "error": maybe({"code": str, "message": str}), "tools": each({"type": str}),
    "tool_choice": (str, dict), "truncation": {"auto", "disabled"}, "parallel_tool_calls": bool, "text": {"format": {"type": str}},
    "top_p": NUMBER, "presence_penalty": NUMBER, "frequency_penalty": NUMBER, "top_logprobs": int, "temperature": NUMBER,
    "reasoning": maybe({"effort": TEXT_OR_NONE, "summary": TEXT_OR_NONE}), "usage": maybe(USAGE), "max_output_tokens": INT_OR_NONE,
    "max_tool_calls": INT_OR_NONE, "store": bool, "background": bool, "service_tier": str, "metadata": (dict, NONE),
    "safety_identifier": TEXT_OR_NONE, "prompt_cache_key": TEXT_OR_NONE,
}
IN_ITEM = {"item_id": str, "output_index": int}
IN_PART = {**IN_ITEM, "content_index": int}
IN_SUMMARY = {**IN_ITEM, "summary_index": int}
EVENTS = {
    "response.created": {"response": RESPONSE}, "response.queued": {"response": RESPONSE}, "response.in_progress": {"response": RESPONSE},
    "response.completed": {"response": RESPONSE}, "response.incomplete": {"response": RESPONSE}, "response.failed": {"response": RESPONSE},
    "response.output_item.added": {"output_index": int, "item": item}, "response.output_item.done": {"output_index": int, "item": item},
    "response.content_part.added": {**IN_PART, "part": part}, "response.content_part.done": {**IN_PART, "part": part},
    "response.output_text.delta": {**IN_PART, "delta": str, "logprobs": list},
    "response.output_text.done": {**IN_PART, "text": str, "logprobs": list},
    "response.refusal.delta": {**IN_PART, "delta": str}, "response.refusal.done": {**IN_PART, "refusal": str},
    "response.reasoning_text.delta": {**IN_PART, "delta": str}, "response.reasoning_text.done": {**IN_PART, "text": str},
    "response.reasoning_summary_part.added": {**IN_SUMMARY, "part": part}, "response.reasoning_summary_part.done": {**IN_SUMMARY, "part": part},
    "response.reasoning_summary_text.delta": {**IN_SUMMARY, "delta": str}, "response.reasoning_summary_text.done": {**IN_SUMMARY, "text": str},
    "response.function_call_arguments.delta": {**IN_ITEM, "delta": str},
    "response.function_call_arguments.done": {**IN_ITEM, "arguments": str},
    "response.custom_tool_call_input.delta": {**IN_ITEM, "delta": str}, "response.custom_tool_call_input.done": {**IN_ITEM, "input": str},
}
ENDS = ("response.completed", "response.incomplete", "response.failed")


def check_response(response):
    check(response, RESPONSE, "response")
    if response["status"] == "completed":
        assert response["completed_at"] >= response["created_at"] and response["error"] is None
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return response


def check_stream(events):
    """Names, numbers, order, pairs, exactly one end; what the deltas say is what the items hold. Returns the last response."""
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [name for name, _ in events]
    assert names[0] == "response.created" and "response.in_progress" in names[:3]
    assert sum(name in ENDS for name in names) == 1 and names[-1] in ENDS
    opened, items, said = {}, [], {}
    for name, data in events:
        check(data, EVENTS[name], name)
        if name == "response.output_item.added":
            opened[data["output_index"]] = data["item"]
            assert len(opened) == data["output_index"] + 1
        elif name == "response.output_item.done":
            assert opened[data["output_index"]]["id"] == data["item"]["id"]
            items.append(data["item"])
        elif "item_id" in data:
            assert opened[data["output_index"]]["id"] == data["item_id"]
            place = (name.rsplit(".", 1)[0], data["item_id"], data.get("content_index"), data.get("summary_index"))
            if name.endswith(".delta"):
                said[place] = said.get(place, "") + data["delta"]
            elif name.endswith(".done") and not name.endswith("part.done"):
                whole = next(data[k] for k in ("text", "refusal", "arguments", "input") if k in data)
                assert said.get(place, "") == whole, name
    final = check_response(events[-1][1]["response"])
    assert items == final["output"]
    return final
