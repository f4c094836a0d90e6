"""`nereid serve --engine deepinfer` before the real LLMEngine (CPU, invented model): the openai SDK, prompts and parsing by
deepseek-recipe over a real tokenizer.json, structured output, kill -9 of a rank, drain. pytest, by `./dev test --deepinfer`."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator

import openai
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

import deepseek_folder
from real_ranks import group_file

_spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(e2e)  # type: ignore[union-attr]

D = "\uff5cDSML\uff5c"
TEXT = "Two nymphs swam past the old lighthouse."
THOUGHT = "They ask for a sentence."
PLAIN = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return deepseek_folder.make(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(tmp_path: pathlib.Path, model: pathlib.Path) -> Iterator[object]:
    servers = []

    def start(ranks: int = 1, env: dict[str, str] | None = None, answer: str = f"{TEXT}", **values: object) -> object:
        file = group_file(tmp_path, data_parallel_size=ranks, model=str(model), **values)
        server = e2e.Server(
            ["serve", "--port", "0", "--engine", "deepinfer", "--engine.deepinfer", str(file), "--engine.deepinfer_name", "invented",
             "--model", str(model), "--engine.deepinfer_python", os.environ["NEREID_DEEPINFER_PYTHON"], "--engine.deepinfer_package",
             str(HERE.parents[1] / "python")],
            env={"NEREID_DEEPINFER_CPU": str(HERE / "cpu"), "NEREID_CPU_ANSWER": answer, "NEREID_CPU_MODEL": str(model), **(env or {})})
        servers.append(server)
        return server

    yield start
    for server in servers:
        code = server.stop()
        log = server.log()
        server.dir.cleanup()
        assert code == 0, f"exit {code} at the end:\n{log[-4000:]}"
        assert "AddressSanitizer" not in log and "runtime error:" not in log, log[-4000:]


def rank_pids(server) -> dict[int, int]:
    """{rank: pid} of the group's processes, which are grandchildren of the service."""
    out = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"nereid_deepinfer" in words and b"--rank" in words and str(server_folder(server)).encode() in b" ".join(words):
            out[int(words[words.index(b"--rank") + 1])] = int(path.parent.name)
    return out


def server_folder(server) -> pathlib.Path:
    worker = server.worker_pid()
    words = pathlib.Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")
    return pathlib.Path(words[words.index(b"--socket") + 1].decode()).parent


def ask(client, **more) -> object:
    return client.chat.completions.create(model="invented", messages=more.pop("messages", [{"role": "user", "content": "Hello"}]),
                                          **{"max_tokens": 100, "extra_body": PLAIN, **more})


def test_the_sdk_gets_answers(serve) -> None:
    server = serve()
    client = server.client()
    whole = ask(client)
    assert whole.choices[0].message.content == TEXT and whole.choices[0].finish_reason == "stop"
    streamed = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == TEXT
    assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens > 5
    assert streamed[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 3
    short = ask(client, max_tokens=3)
    assert TEXT.startswith(short.choices[0].message.content) and short.choices[0].finish_reason == "length"
    # Stop strings are cut by the gateway, between tokens and inside them; the engine's request is aborted.
    for stop in ("past", "ph", "the old"):
        cut = ask(client, stop=[stop])
        assert cut.choices[0].message.content == TEXT.split(stop)[0] and cut.choices[0].finish_reason == "stop"
    assert [c.message.content for c in ask(client, n=3).choices] == [TEXT] * 3
    told = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    # An end token has no text, but its probability: the invented sampler gives -0.5 to all, and the next ids for alternatives.
    assert all(t.logprob == -0.5 and len(t.top_logprobs) == 2 for t in told) and "".join(t.token for t in told).startswith(TEXT)
    text = client.completions.create(model="invented", prompt="Two", max_tokens=50)
    assert text.choices[0].text == TEXT
    by_id = client.completions.create(model="invented", prompt=[100, 200, 300], max_tokens=50)
    assert by_id.choices[0].text == TEXT and by_id.usage.prompt_tokens == 3
    assert [m.id for m in client.models.list()][0] == "invented"
    for field, value in [("frequency_penalty", 0.5), ("presence_penalty", 0.5), ("logit_bias", {"5": 1})]:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **{field: value})
        assert field in str(refused.value) and refused.value.param == field
    with pytest.raises(anthropic_error()):
        server.anthropic().messages.create(model="invented", max_tokens=20, messages=[])
    said = server.anthropic().messages.create(model="invented", max_tokens=60, messages=[{"role": "user", "content": "Hello"}],
                                              thinking={"type": "disabled"})
    assert said.content[0].text == TEXT and said.stop_reason == "end_turn"
    # A long prompt comes again: the agent's kept prefix is used, and the usage says so.
    long = [{"role": "user", "content": "Tell me of the sea. " * 120}]
    first, second = (ask(client, messages=long).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == (second.prompt_tokens - 140) // 128 * 128 > 0


def anthropic_error() -> type[Exception]:
    import anthropic

    return anthropic.BadRequestError


def test_reasoning_and_calls_are_parsed_by_the_makers_library(serve) -> None:
    call = (f"{THOUGHT}</think>I look.\n\n<{D}tool_calls>\n<{D}invoke name=\"weather\">\n<{D}parameter name=\"city\" string=\"true\">Oslo"
            f"</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>")
    client = serve(answer=call).client()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    thinking = {"thinking": {"type": "enabled"}}
    message = ask(client, tools=tools, extra_body=thinking).choices[0].message
    assert message.reasoning_content == THOUGHT and message.content.strip() == "I look."
    assert [c.function.name for c in message.tool_calls] == ["weather"]
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    chunks = [c for c in ask(client, tools=tools, extra_body=thinking, stream=True) if c.choices]
    assert "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks) == THOUGHT
    assert "".join(t.function.arguments or "" for c in chunks for t in c.choices[0].delta.tool_calls or []).replace(" ", "") == '{"city":"Oslo"}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_structured_output_by_xgrammar(serve) -> None:
    """The invented sampler obeys the grammar's mask, as the real one does. Held at once without reasoning; after </think>
    with it."""
    client = serve(answer=f"{THOUGHT}</think>Whatever it wants to say.").client()
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 3}}, "required": ["n"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    plain = ask(client, response_format=form)
    assert json.loads(plain.choices[0].message.content) == {"n": 3} and plain.choices[0].finish_reason == "stop"
    thought = ask(client, response_format=form, extra_body={"thinking": {"type": "enabled"}}).choices[0].message
    assert thought.reasoning_content == THOUGHT and json.loads(thought.content) == {"n": 3}
    # What xgrammar would let pass is refused before it; Lark is refused.
    gap = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "multipleOf": 5}}}
    with pytest.raises(openai.BadRequestError, match="multipleOf"):
        ask(client, response_format=gap)
    for name, value, answers in [("regex", "ab+c", ("ab",)), ("grammar", 'root ::= "yes" | "no"', ("yes", "no")), ("choice", ["left"], ("left",))]:
        held = ask(client, extra_body={**PLAIN, "structured_outputs": {name: value}}, max_tokens=8)
        assert held.choices[0].message.content.startswith(answers), (name, held)
    with pytest.raises(openai.BadRequestError):
        ask(client, extra_body={**PLAIN, "structured_outputs": {"regex": "("}})
    assert json.loads(ask(client, response_format=form).choices[0].message.content) == {"n": 3}, "and it goes on"


def test_forced_calls_are_held_by_xgrammar(serve) -> None:
    """Whatever the model wants to say: the prompt opens the block of calls, the grammar closes it. The
    invented sampler spells it in bytes, the lowest ids that are allowed."""
    client = serve(answer=f"{THOUGHT}</think>Whatever it wants to say.").client()
    pick = {"type": "function", "function": {"name": "pick", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 3}}, "required": ["n"]}}}
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    for choice, tools in (("required", [pick]), ({"type": "function", "function": {"name": "pick"}}, [other, pick])):
        got = ask(client, tools=tools, tool_choice=choice, parallel_tool_calls=False, max_tokens=400).choices[0]
        assert [(c.function.name, json.loads(c.function.arguments)) for c in got.message.tool_calls] == [("pick", {"n": 3})]
    chunks = [c for c in ask(client, tools=[pick], tool_choice="required", parallel_tool_calls=False, max_tokens=400, stream=True) if c.choices]
    assert "".join(t.function.arguments or "" for c in chunks for t in c.choices[0].delta.tool_calls or []).replace(" ", "") == '{"n":3}'
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": pick["function"]["parameters"]}}  # type: ignore[index]
    thinking = {"thinking": {"type": "enabled"}}
    either = ask(client, tools=[pick], response_format=form, parallel_tool_calls=False, extra_body=thinking, max_tokens=400).choices[0]
    said = either.message.content if either.message.content else either.message.tool_calls[0].function.arguments
    assert either.message.reasoning_content and json.loads(said) == {"n": 3}, either
    with pytest.raises(openai.BadRequestError, match="multipleOf"):
        bad = {"type": "function", "function": {"name": "p", "strict": True, "parameters": {
            "type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}, "required": ["n"], "additionalProperties": False}}}
        ask(client, tools=[bad], tool_choice="required")
    with pytest.raises(openai.BadRequestError):
        ask(client, extra_body={**PLAIN, "response_format": {"type": "grammar", "syntax": "lark", "grammar": 'start: "a"'}})


def test_two_ranks_share_the_requests(serve) -> None:
    server = serve(2)
    answers: list[str] = []

    def work() -> None:
        answers.append(ask(server.client()).choices[0].message.content)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert answers == [TEXT] * 16
    assert sorted(rank_pids(server)) == [0, 1]
    assert '"rank":1,' in server.log().replace("\\", ""), "lines of ranks are tagged"


def test_killed_rank_restarts_the_group(serve) -> None:
    """Clients of running requests get the dialect's error; what waited is admitted again."""
    server = serve(2, env={"NEREID_CPU_ENDLESS": "1", "NEREID_CPU_STEP_MS": "5"}, max_num_seqs=2)
    client = server.client()
    running = [ask(client, stream=True, max_tokens=1500) for _ in range(4)]
    first = [next(iter(s)) for s in running]
    assert all(first)
    waiting: list[object] = []

    def wait() -> None:
        waiting.append(ask(server.client(), max_tokens=5))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for t in threads:
        t.start()
    before = rank_pids(server)
    os.kill(before[1], signal.SIGKILL)
    for stream in running:
        with pytest.raises(openai.APIError):
            for _ in stream:
                pass
    for t in threads:
        t.join(120)
    assert len(waiting) == 3 and all(TEXT.startswith(w.choices[0].message.content) for w in waiting)
    after = rank_pids(server)
    assert sorted(after) == [0, 1] and not set(after.values()) & set(before.values()), "a whole new group"
    assert server.metric_sum("nereid_worker_restarts_total") >= 1


def test_sigterm_lets_running_requests_finish(serve) -> None:
    """Drain: what runs ends with its whole answer, and then the ranks go."""
    server = serve(env={"NEREID_CPU_STEP_MS": "50"})
    stream = ask(server.client(), stream=True)
    next(iter(stream))
    ranks = rank_pids(server)
    server.process.send_signal(signal.SIGTERM)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) in (TEXT, TEXT.removeprefix("Two"))
    assert server.process.wait(40) == 0
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks.values())


def test_configuration_fault_is_told_once(serve, tmp_path: pathlib.Path) -> None:
    file = group_file(tmp_path, engine_type="BOTH")
    server = e2e.Server(["serve", "--port", "0", "--engine", "deepinfer", "--engine.deepinfer", str(file), "--engine.deepinfer_python",
                         os.environ["NEREID_DEEPINFER_PYTHON"], "--engine.deepinfer_package", str(HERE.parents[1] / "python")], ready=False)
    try:
        assert server.process.wait(60) == 2
        assert "engine_type" in server.log()
    finally:
        server.stop()
        server.dir.cleanup()
