"""The Responses API through the official openai SDK. The checks of the Open Responses suite: test_open_responses.py."""

import json

import openai
import pytest

from conftest import parse_events, wait_for
from open_responses import check_stream

FUNCTION = {"type": "function", "name": "get_weather", "description": "The weather.", "strict": False,
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [
    {"type": "function", "name": "wait_agent", "strict": False,
     "parameters": {"type": "object", "properties": {"target": {"type": "string"}}}}]}


@pytest.fixture
def oai(scripted):
    return scripted.client()


def create(oai, text, **options):
    return oai.responses.create(model="scripted", input=text, **options)


def test_image_input_is_refused_by_name_where_the_engine_sees_none(scripted):
    image = "data:image/png;base64," + "iVBORw0KGgo=" * 8000    # A94: no length limit of its own
    status, _, raw = scripted.request("POST", "/v1/responses", {"model": "scripted", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "what is this"}, {"type": "input_image", "image_url": image}]}]})
    assert status == 400 and "image" in json.loads(raw)["error"]["message"], raw


def test_truncation_auto_answers_as_if_the_oldest_turns_had_not_been_sent(serve):
    oai = serve("--engine.context=512", "--engine.parallel=1", "--cache.enabled=false").client()
    turns = [{"role": "user", "content": "Name a sea nymph."}]
    for word in ("salt ", "wave ", "reef "):
        turns = [{"role": "user", "content": word * 150}, {"role": "assistant", "content": "Aye."}, *turns]

    def ask(items, **options):
        return oai.responses.create(model="default", input=items, max_output_tokens=8, temperature=0, **options)

    with pytest.raises(openai.BadRequestError) as refused:
        ask(turns)
    assert refused.value.code == "context_length_exceeded"
    answer = ask(turns, truncation="auto")
    sizes = [oai.responses.input_tokens.count(model="default", input=turns[k:]).input_tokens for k in (0, 2, 4, 6)]
    kept = next(k for k, size in zip((0, 2, 4, 6), sizes) if size + 8 <= 512)
    assert answer.usage.input_tokens == sizes[kept // 2] and 0 < kept < 6, sizes
    counted = oai.responses.input_tokens.count(model="default", input=turns, truncation="auto").input_tokens
    assert counted <= 512 - 512 // 8 and counted in sizes, "an eighth is left for the answer"
    assert answer.output_text == ask(turns[kept:]).output_text != ""


# ---- reasoning and tools

def test_encrypted_reasoning_makes_store_false_work(oai):
    answer = create(oai, "think-first", store=False, include=["reasoning.encrypted_content"])
    blob = answer.output[0].encrypted_content
    assert blob and "Six" not in blob
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": blob}
    turn = [{"role": "user", "content": "think-first"}, item, {"role": "assistant", "content": "It is 42."},
            {"role": "user", "content": "say-hi"}]

    def count(items):
        return oai.responses.input_tokens.count(model="scripted", input=items).input_tokens
    assert count(turn) == count([turn[0], *turn[2:]]) + len("<think>Six times seven.</think>\n")
    turn[1] = {**item, "encrypted_content": "OPAQUE_BLOB_1"}    # somebody else's: left out, no 400
    assert count(turn) == count([turn[0], *turn[2:]])
    assert create(oai, turn).output_text == "It is 42."
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(answer.id)    # store: false


def test_thoughts_as_a_summary(oai, scripted):
    """Where one is asked for, it is the model's own words; and its turn is history like any other."""
    asked = {"reasoning": {"summary": "auto"}}
    events = scripted.events("/v1/responses", {"model": "scripted", "input": "think-first", **asked})
    final = check_stream(events)
    thought = final["output"][0]
    assert (thought["summary"], thought["content"]) == ([{"type": "summary_text", "text": "Six times seven."}], [])
    assert final["reasoning"]["summary"] == "auto"
    assert "".join(d["delta"] for n, d in events if n == "response.reasoning_summary_text.delta") == "Six times seven."
    assert not any(n.startswith("response.reasoning_text") for n, _ in events)
    with oai.responses.stream(model="scripted", input="think-first", **asked) as stream:
        assert stream.get_final_response().output[0].summary[0].text == "Six times seven."
    kept = [create(oai, "think-first", **options) for options in (asked, {})]
    history = [[{"role": "user", "content": "think-first"}, *[i.model_dump() for i in k.output], {"role": "user", "content": "more"}] for k in kept]
    assert len({oai.responses.input_tokens.count(model="scripted", input=h).input_tokens for h in history}) == 1
    with pytest.raises(openai.BadRequestError, match="reasoning.summary"):
        create(oai, "think-first", reasoning={"summary": "short"})


def test_custom_tool(oai, scripted):
    """A77, A79: text in, text out; and back again."""
    answer = create(oai, "patch-please", tools=[PATCH])
    call = answer.output[0]
    text = '*** Begin Patch\n+h\u00e9llo "x"\n*** End Patch\n'
    assert call.type == "custom_tool_call" and call.name == "apply_patch" and call.input == text
    events = scripted.events("/v1/responses", {"model": "scripted", "input": "patch-please", "tools": [PATCH]})
    check_stream(events)
    assert "".join(d["delta"] for n, d in events if n == "response.custom_tool_call_input.delta") == text
    history = [{"role": "user", "content": "patch-please"}, call.model_dump(),
               {"type": "custom_tool_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "done"}]}]
    assert create(oai, history, tools=[PATCH]).output_text == "DONE OK"


def test_search_tool(oai, scripted):
    """What the model writes over several lines is one frame."""
    tools = [{"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}}]
    events = scripted.events("/v1/responses", {"model": "scripted", "input": "search-over-lines", "tools": tools})
    call = events[-1][1]["response"]["output"][0]
    assert call["type"] == "tool_search_call" and call["arguments"] == {"query": "herons"}
    assert [d["item"] for n, d in events if n == "response.output_item.done"] == [call]


def test_namespace_tool(oai):
    """A77, A102: name and namespace apart, in the answer and in history."""
    answer = create(oai, "wait-for-agent", tools=[AGENTS, {"type": "web_search"}])
    call = answer.output[0]
    assert (call.name, call.namespace) == ("wait_agent", "multi_agent_v1")
    history = [{"role": "user", "content": "wait-for-agent"}, call.model_dump(),
               {"type": "function_call_output", "call_id": call.call_id, "output": "over"}]
    assert create(oai, history, tools=[AGENTS]).output_text == "DONE OK"


def test_history_that_other_gateways_refuse(oai):
    """A77, A82, A83, A101."""
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "more rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "nope", "arguments": '{"cmd": ', "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "unsupported call"},
        {"type": "local_shell_call", "call_id": "c2", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c2", "output": "x"},
        {"type": "tool_search_call", "call_id": "c3", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c3", "tools": []},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "agent_message", "content": [{"type": "input_text", "text": "from another"}]},
        {"type": "compaction", "encrypted_content": "not ours"},
        {"type": "something_new_of_2027", "x": 1},
        {"role": "user", "content": "say-hi"}]
    assert create(oai, items).output_text == "DONE OK"    # the script's answer to a tool's result


# ---- state

def test_stored_until_deleted(oai):
    made = create(oai, "say-hi", metadata={"k": "v"})
    got = oai.responses.retrieve(made.id)
    assert got.output_text == made.output_text and got.metadata == {"k": "v"} and got.id == made.id
    items = oai.responses.input_items.list(made.id).data
    assert len(items) == 1 and items[0].content[0].text == "say-hi" and items[0].id
    oai.responses.delete(made.id)
    for call in (oai.responses.retrieve, oai.responses.delete, oai.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    with pytest.raises(openai.NotFoundError) as lost:
        create(oai, "x", previous_response_id=made.id)
    assert lost.value.param == "previous_response_id"


def test_input_items_in_pages(oai):
    made = create(oai, [{"role": "user", "content": f"n{i}"} for i in range(5)])
    page = oai.responses.input_items.list(made.id, limit=2, order="asc")
    assert [i.content[0].text for i in page.data] == ["n0", "n1"] and page.has_more
    assert [i.content[0].text for i in oai.responses.input_items.list(made.id, limit=2, order="asc")] == [f"n{i}" for i in range(5)]
    assert [i.content[0].text for i in oai.responses.input_items.list(made.id)][0] == "n4"


def test_streamed_answer_is_stored_before_its_end_is_seen(oai):
    with oai.responses.stream(model="scripted", input="say-hi") as stream:
        done = stream.get_final_response()
    assert oai.responses.retrieve(done.id).output_text == "Hi there, friend."


def test_background(oai):
    made = create(oai, "say-slowly", background=True)
    assert made.status == "queued" and made.background is True
    done = wait_for(lambda: (r := oai.responses.retrieve(made.id)).status == "completed" and r, 30, "background response")
    assert done.output_text == "one two three four five six seven eight nine ten"


def test_background_stream_is_resumable(scripted, oai):
    """GET ?stream=true&starting_after=N, while it runs and after it."""
    status, _, raw = scripted.request("POST", "/v1/responses", {"model": "scripted", "input": "say-slowly", "background": True,
                                                                 "stream": True})
    assert status == 200
    all_events = parse_events(raw)
    final = check_stream(all_events)
    assert [n for n, _ in all_events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    for after in (0, 5, len(all_events) - 2):
        _, _, rest = scripted.request("GET", f"/v1/responses/{final['id']}?stream=true&starting_after={after}")
        assert parse_events(rest) == all_events[after + 1:]
    running = create(oai, "say-slowly", background=True)
    _, _, live = scripted.request("GET", f"/v1/responses/{running.id}?stream=true")
    assert check_stream(parse_events(live))["status"] == "completed"


def test_the_sdk_resumes_a_background_stream(oai):
    whole = list(oai.responses.create(model="scripted", input="say-slowly", background=True, stream=True))
    id = whole[0].response.id
    assert whole[-1].type == "response.completed" and [e.sequence_number for e in whole] == list(range(len(whole)))
    for after in (0, 4, len(whole) - 2):
        rest = list(oai.responses.retrieve(id, stream=True, starting_after=after))
        assert [e.to_dict() for e in rest] == [e.to_dict() for e in whole[after + 1:]]
    # While it runs: the first events are read, the connection is given up, the SDK goes on behind them.
    running = oai.responses.create(model="scripted", input="say-slowly", background=True, stream=True)
    first = [next(running) for _ in range(3)]
    running.close()
    rest = list(oai.responses.retrieve(first[0].response.id, stream=True, starting_after=first[-1].sequence_number))
    assert [e.sequence_number for e in first + rest] == list(range(len(first) + len(rest)))
    assert rest[-1].response.output_text == whole[-1].response.output_text != ""


def test_cancel(oai):
    made = create(oai, "say-forever", background=True)
    wait_for(lambda: oai.responses.retrieve(made.id).status == "in_progress", 20, "in_progress")
    assert oai.responses.cancel(made.id).status == "cancelled"
    assert oai.responses.retrieve(made.id).status == "cancelled"
    assert oai.responses.cancel(made.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        oai.responses.cancel(create(oai, "say-hi").id)


def test_background_failure_is_told(oai):
    made = create(oai, "refuse-now", background=True)
    done = wait_for(lambda: (r := oai.responses.retrieve(made.id)).status == "failed" and r, 20, "failed response")
    assert done.error.code == "server_error" and done.error.message


def test_conversation(oai):
    conversation = oai.conversations.create(metadata={"a": "b"}, items=[{"type": "message", "role": "user", "content": "heron-test-memory"}])
    answer = create(oai, "well?", conversation=conversation.id)
    assert answer.output_text == "I remember the heron." and answer.conversation.id == conversation.id
    items = oai.conversations.items.list(conversation.id, order="asc").data
    assert [i.role for i in items] == ["user", "user", "assistant"]
    again = create(oai, "and now?", conversation={"id": conversation.id})
    assert again.output_text == "I remember the heron."
    assert len(oai.conversations.items.list(conversation.id).data) == 5
    assert oai.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    assert oai.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    added = oai.conversations.items.create(conversation.id, items=[{"type": "message", "role": "user", "content": "extra"}])
    assert oai.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id).content[0].text == "extra"
    oai.conversations.items.delete(added.data[0].id, conversation_id=conversation.id)
    assert len(oai.conversations.items.list(conversation.id).data) == 5
    assert oai.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        create(oai, "x", conversation=conversation.id)


def prompt_of(oai, items, **options):
    return oai.responses.input_tokens.count(model="scripted", input=items, **options).input_tokens


def said(text):
    return {"role": "user", "content": text}


def test_references_to_items_are_not_history_themselves(oai):
    """The item is there already, or is brought from where it is stored; what comes later finds it once."""
    first = create(oai, "say-hi")
    reference = {"type": "item_reference", "id": first.output[0].id}
    second = create(oai, [reference, said("two")], previous_response_id=first.id)
    assert create(oai, "three", previous_response_id=second.id).status == "completed"
    conversation = oai.conversations.create()
    turn = create(oai, "say-hi", conversation=conversation.id)
    create(oai, [{"type": "item_reference", "id": turn.output[0].id}, said("two")], conversation=conversation.id)
    assert create(oai, "three", conversation=conversation.id).status == "completed"
    assert oai.conversations.items.retrieve(turn.output[0].id, conversation_id=conversation.id).type == "message"
    # Without its response as history; and without a type, which the SDK leaves out.
    written = [{"role": "assistant", "content": "Hi there, friend."}, said("two")]
    for named in (reference, {"id": first.output[0].id}):
        assert prompt_of(oai, [named, said("two")]) == prompt_of(oai, written)
    with pytest.raises(openai.NotFoundError, match="msg_0123abcd_0"):
        create(oai, [{"type": "item_reference", "id": "msg_0123abcd_0"}, said("two")])


def test_equal_ids_lose_nothing(oai, scripted):
    same = [{**said(text), "type": "message", "id": "x"} for text in ("a", "b")] + [{**said("c"), "type": "message", "id": "y"}]
    conversation = oai.conversations.create(items=same)
    create(oai, same, conversation=conversation.id)
    items = list(oai.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [i.content[0].text for i in items if i.role == "user"] == ["a", "b", "c", "a", "b", "c"]
    assert len({i.id for i in items}) == len(items) == 7
    answer = create(oai, same)
    listed = list(oai.responses.input_items.list(answer.id, order="asc", limit=1))
    assert [i.content[0].text for i in listed] == ["a", "b", "c"]
    with pytest.raises(openai.ConflictError):
        oai.conversations.items.create(conversation.id, items=[{**said("z"), "type": "message", "id": "y"}])


def test_items_that_can_be_no_history_are_refused_where_they_come_in(oai):
    for made in (lambda items: oai.conversations.create(items=items),
                 lambda items, known=oai.conversations.create(metadata={"a": "b"}): oai.conversations.items.create(known.id, items=items)):
        with pytest.raises(openai.BadRequestError) as refused:
            made([said("fine"), {"type": "message", "role": "bogus", "content": "x"}])
        assert refused.value.param == "items[1].role"
    conversation = oai.conversations.create(metadata={"a": "b"})
    with pytest.raises(openai.BadRequestError):
        oai.post(f"/conversations/{conversation.id}", body={}, cast_to=object)
    assert oai.conversations.retrieve(conversation.id).metadata == {"a": "b"}


def test_a_turn_of_a_conversation_as_the_previous_response(oai):
    """It is seen as it was: without what came later; and alone when the conversation is gone."""
    conversation = oai.conversations.create(items=[said("before")])
    first = create(oai, "alpha", conversation=conversation.id)
    create(oai, "beta", conversation=conversation.id)
    turn = [said("alpha"), {"role": "assistant", "content": first.output_text}]
    assert prompt_of(oai, "x", previous_response_id=first.id) == prompt_of(oai, [said("before"), *turn, said("x")])
    oai.conversations.delete(conversation.id)
    assert prompt_of(oai, "x", previous_response_id=first.id) == prompt_of(oai, [*turn, said("x")])


def test_what_is_as_deep_as_it_may_be_can_be_read_again(oai, scripted):
    """128 levels come in; the record of a response has more."""
    deep = '{"model": "scripted", "input": "x", "metadata": {"a": ' + "[" * 126 + "]" * 126 + "}}"
    status, _, raw = scripted.request("POST", "/v1/responses", deep)
    name = json.loads(raw)["id"]
    assert status == 200
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
        assert scripted.request(method, f"/v1/responses/{name}{path}")[0] == 200, (method, path)
    assert scripted.request("POST", "/v1/responses", deep.replace("[]", "[[]]"))[0] == 400


def test_outputs_of_shells(oai):
    """Other shapes than parts; and without a call_id, as the SDK's types allow."""
    call = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
    printed = {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "seen", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}
    assert prompt_of(oai, [said("x"), call, printed]) > prompt_of(oai, [said("x"), call]) + len("seen")
    local = {"type": "local_shell_call", "id": "l", "call_id": "l", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}}
    assert create(oai, [said("x"), local, {"type": "local_shell_call_output", "id": "l", "output": "seen"}]).output_text == "DONE OK"
    assert create(oai, [said("say-hi"), {"type": "function_call_output", "output": "whose?"}]).output_text == "Hi there, friend."


def test_tools_that_were_found_are_called_by_their_names(oai):
    """A83, A102: what a search has found, or an earlier turn has brought, with namespace and name apart; again and again."""
    search = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}}
    found = [said("wait-after-a-search"), {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "x"}},
             {"type": "tool_search_output", "call_id": "s", "execution": "client", "status": "completed", "tools": [AGENTS]}]
    brought = [{"type": "additional_tools", "tools": [AGENTS]}, said("wait-for-agent")]
    earlier = create(oai, [brought[0], said("say-hi")], tools=[search])
    for items, options in ((found, {}), (found + found, {}), (brought + brought, {}), (brought, {"tools": [search, AGENTS]}),
                           ("wait-for-agent", {"previous_response_id": earlier.id})):
        call = create(oai, items, **{"tools": [search], **options}).output[0]
        assert (call.type, call.name, call.namespace) == ("function_call", "wait_agent", "multi_agent_v1"), items
    # A choice may name what an earlier turn has brought: the scripted engine has no grammars to force it with, and says so.
    with pytest.raises(openai.BadRequestError, match="not in 'tools'"):
        create(oai, "x", tool_choice={"type": "function", "name": "wait_agent", "namespace": "multi_agent_v1"})
    with pytest.raises(openai.BadRequestError) as refused:
        create(oai, "x", previous_response_id=earlier.id, tool_choice={"type": "function", "name": "wait_agent", "namespace": "multi_agent_v1"})
    assert "not in" not in str(refused.value)
    # A turn's own definition counts, whatever was brought before.
    custom = create(oai, [{"type": "additional_tools", "tools": [{**PATCH, "format": {"type": "text"}}]}, said("say-hi")], tools=[search])
    function = {"type": "function", "name": "apply_patch", "parameters": {"type": "object"}}
    assert create(oai, "patch-please", previous_response_id=custom.id, tools=[function]).output[0].type == "function_call"
    assert create(oai, "patch-please", previous_response_id=custom.id).output[0].type == "custom_tool_call"
    with pytest.raises(openai.BadRequestError, match="two tools"):
        create(oai, "x", tools=[AGENTS, AGENTS])


def test_allowed_tools_of_which_none_is_here(oai):
    choice = {"type": "allowed_tools", "tools": [{"type": "web_search"}]}
    with pytest.raises(openai.BadRequestError, match="tool_choice.tools"):
        create(oai, "x", tools=[FUNCTION], tool_choice={**choice, "mode": "required"})
    with_none = prompt_of(oai, "x", tools=[FUNCTION], tool_choice="none")
    assert prompt_of(oai, "x", tools=[FUNCTION], tool_choice={**choice, "mode": "auto"}) == with_none < prompt_of(oai, "x", tools=[FUNCTION])


def test_compact(oai):
    """What was compacted is still known, and unreadable to the client."""
    compacted = oai.responses.compact(model="scripted", input=[{"role": "user", "content": "I like herons."}])
    assert compacted.object == "response.compaction" and compacted.output[0].type == "compaction"
    assert "heron" not in compacted.output[0].encrypted_content
    items = [i.model_dump() for i in compacted.output] + [{"role": "user", "content": "say-hi"}]
    assert create(oai, items).output_text == "Hi there, friend."
    plain = oai.responses.input_tokens.count(model="scripted", input=items[1:]).input_tokens
    assert oai.responses.input_tokens.count(model="scripted", input=items).input_tokens > plain + 30


def test_input_tokens_is_what_is_billed(oai):
    options = dict(model="scripted", input="say-hi", instructions="be kind", tools=[FUNCTION, AGENTS])
    assert oai.responses.input_tokens.count(**options).input_tokens == oai.responses.create(**options).usage.input_tokens


# ---- ends and errors

def test_incomplete(oai, scripted):
    answer = create(oai, "say-hi", max_output_tokens=4)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    final = check_stream(scripted.events("/v1/responses", {"model": "scripted", "input": "say-hi", "max_output_tokens": 4}))
    assert final["status"] == "incomplete"


def test_failure_in_the_middle(scripted):
    """A26, A29."""
    final = check_stream(scripted.events("/v1/responses", {"model": "scripted", "input": "fail-later"}))
    assert final["status"] == "failed" and final["error"]["code"] == "server_error" and final["error"]["message"]


def test_refused_before_anything_is_a_status(scripted):
    """A31."""
    final = check_stream(scripted.events("/v1/responses", {"model": "scripted", "input": "refuse-now"}))
    assert final["status"] == "failed"    # the headers had left
    status, headers, raw = scripted.request("POST", "/v1/responses", {"model": "scripted", "input": "refuse-now"})
    assert status == 503 and json.loads(raw)["error"]["type"] == "server_error" and headers["retry-after"]


@pytest.mark.parametrize("change, param", [
    ({"input": 5}, "input"), ({"input": []}, "input"), ({"input": [5]}, "input[0]"), ({"input": [{"x": 1}]}, "input[0].type"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"), ({"temperature": 9}, "temperature"),
    ({"max_output_tokens": 0}, "max_output_tokens"), ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"), ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"), ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "conversation"), ({"prompt": {"id": "x"}}, "prompt"),
])
def test_bad_field(scripted, change, param):
    status, _, raw = scripted.request("POST", "/v1/responses", {"model": "scripted", "input": "x", **change})
    error = json.loads(raw)["error"]
    assert status == 400 and error["param"] == param, raw
