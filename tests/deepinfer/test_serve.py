"""`nereid serve --engine deepinfer` before ranks with the fake engine: what clients ask by the openai SDK, as it reaches the
engine, and what is refused. The same service before the real LLMEngine: real_serve.py."""

from __future__ import annotations

import base64
import importlib.util
import json
import pathlib
import struct
import sys
import zlib
from collections.abc import Callable, Iterator

import pytest

openai = pytest.importorskip("openai")  # the environment of the end-to-end tests has it

import deepseek_folder

HERE = pathlib.Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(e2e)  # type: ignore[union-attr]

D = "\uff5cDSML\uff5c"
TEXT = "Two nymphs swam past the old lighthouse."
CALL = (f'<{D} invoke name="weather">\n<{D} parameter name="city" string="true">Oslo</{D} parameter>\n'
        f'<{D} parameter name="days" string="false">3</{D} parameter>\n</{D} invoke>\n</{D} calls>')
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return deepseek_folder.make(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(tmp_path: pathlib.Path, model: pathlib.Path) -> Iterator[Callable[[str], object]]:
    servers = []

    def start(answer: str = TEXT, groups: int = 1, **flags: str) -> object:
        values = {"model": str(model), "served_model_name": "invented", "max_model_len": 2048, "max_num_seqs": 16,
                  "max_num_batched_tokens": 2048, "python": sys.executable, "prepare": str(HERE / "fake_rank.py"), "report_folder": str(tmp_path)}
        files = [tmp_path / f"group{i}.toml" for i in range(groups)]
        for file in files:
            file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()))
        more = [word for name, value in flags.items() for word in (f"--{name.replace('__', '.')}", value)]
        server = e2e.Server(
            ["serve", "--port", "0", "--engine", "deepinfer", "--engine.deepinfer", ",".join(map(str, files)), "--engine.deepinfer_name", "invented",
             "--model", str(model), "--engine.deepinfer_python", sys.executable, "--engine.deepinfer_package", str(HERE.parents[1] / "python"),
             *more],
            env={"NEREID_FAKE_FOLDER": str(HERE), "NEREID_FAKE_ANSWER": json.dumps(deepseek_folder.tokens_of(model, answer)),
                 "NEREID_FAKE_ASKED": str(tmp_path / "asked")})
        server.asked = lambda: [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
        servers.append(server)
        return server

    yield start
    for server in servers:
        code, log = server.stop(), server.log()
        server.dir.cleanup()
        assert code == 0, f"exit {code} at the end:\n{log[-4000:]}"
        assert "AddressSanitizer" not in log and "runtime error:" not in log, log[-4000:]


def ask(client, **more) -> object:
    body = {"thinking": {"type": "disabled"}, **more.pop("extra_body", {})}
    return client.chat.completions.create(model="invented", messages=more.pop("messages", [{"role": "user", "content": "Hello"}]),
                                          **{"max_tokens": 100, "extra_body": body, **more})


def test_text_and_refusals(serve) -> None:
    server = serve()
    client = server.client()
    assert ask(client).choices[0].message.content == TEXT
    assert "".join(c.choices[0].delta.content or "" for c in ask(client, stream=True) if c.choices) == TEXT
    before = len(server.asked())
    lark = {"name": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    refused = [
        ({"response_format": {"type": "grammar", "syntax": "lark", "grammar": 'start: "yes"\n'}}, "response_format.type"),
        ({"tools": [{"type": "custom", "custom": {"name": "q", "format": {"type": "grammar", "grammar": lark}}}], "tool_choice": "required"}, "tools"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"), ({"presence_penalty": 0.5}, "presence_penalty"), ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "multipleOf": 5}}}}, "response_format"),
    ]
    for how, param in refused:
        with pytest.raises(openai.BadRequestError) as bad:
            ask(client, **how)
        assert param is None or bad.value.param == param, (how, bad.value)
    assert len(server.asked()) == before, "nothing of them reached the engine"
    # Where a client names no notation it is xgrammar's EBNF; Lark is none.
    with pytest.raises(openai.BadRequestError, match="could not compile"):
        ask(client, extra_body={"structured_outputs": {"grammar": 'start: "a"\n'}})


def test_forced_calls_reach_the_engine_as_its_grammar(serve) -> None:
    server = serve(CALL)
    client = server.client()
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        got = ask(client, tools=TOOLS, tool_choice=choice).choices[0]
        assert [c.function.name for c in got.message.tool_calls] == ["weather"]
        assert json.loads(got.message.tool_calls[0].function.arguments) == {"city": "Oslo", "days": 3}
        so = server.asked()[-1]["params"]["so_args"]
        assert so["schema_type"] == "ebnf" and "trigger_token_ids" not in so and so["schema"].startswith("root ::= more\n")
        assert ('name=\\"wait\\"' in so["schema"]) == (choice == "required")
    chunks = [c for c in ask(client, tools=TOOLS, tool_choice="required", stream=True) if c.choices]
    assert json.loads("".join(t.function.arguments or "" for c in chunks for t in c.choices[0].delta.tool_calls or [])) == {"city": "Oslo", "days": 3}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    said = server.anthropic().messages.create(model="invented", max_tokens=60, messages=[{"role": "user", "content": "?"}], tool_choice={"type": "any"},
                                              tools=[{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}])
    assert said.content[0].input == {"city": "Oslo", "days": 3} and said.stop_reason == "tool_use"
    # A strict tool whose schema xgrammar would let pass: refused with the keyword; one that is not strict is held as far as it goes.
    odd = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": {
        "type": "object", "properties": {"days": {"type": "integer", "multipleOf": 5}}, "required": ["days"], "additionalProperties": False}}}]
    with pytest.raises(openai.BadRequestError, match="multipleOf") as bad:
        ask(client, tools=odd, tool_choice="required")
    assert bad.value.param == "tools"
    odd[0]["function"]["strict"] = False
    assert ask(client, tools=odd, tool_choice="required").choices[0].message.tool_calls
    assert server.request("GET", "/v1/models")[0] == 200


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + bytes(3 * width) for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_reach_the_engine_as_bytes_and_sizes(serve) -> None:
    server = serve()
    client = server.client()
    images = [png(30, 20), png(7, 50)]
    parts: list[dict[str, object]] = [{"type": "text", "text": "Which is <\uff5cimage\uff5c> higher?"}]
    parts += [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(i).decode()}} for i in images]
    got = ask(client, messages=[{"role": "user", "content": parts}])
    assert got.choices[0].message.content == TEXT
    asked = server.asked()[-1]
    assert asked["images"] == [[30, 20], [7, 50]] and asked["bytes"] == [len(i) for i in images]
    assert asked["prompt"].count(129264) == 2, "a place for each, and none for the text that looks like one"
    assert got.usage.prompt_tokens == len(asked["prompt"]) + 2 * 4, "what the engine made of the places counts"
    parts[1]["image_url"] = {"url": "data:image/png;base64," + base64.b64encode(b"BM nothing").decode()}  # type: ignore[index]
    with pytest.raises(openai.BadRequestError):
        ask(client, messages=[{"role": "user", "content": parts}])


def test_groups_share_by_the_routers_policy(serve, tmp_path: pathlib.Path) -> None:
    """Several groups behind one service: each is an engine that the router chooses among, and its costs begin with what DeepInfer
    says of its own."""
    server = serve(groups=2, service__engines="2", router__policy="round-robin", router__cost=str(tmp_path / "cost.json"), router__cost_tflops="600")
    e2e.wait_for(lambda: server.log().count('"state":"ready"') == 2, 60, "both groups")
    client = server.client()
    for _ in range(8):
        assert ask(client).choices[0].message.content == TEXT
    chosen = [v for name, v in server.metrics().items() if name.startswith("nereid_router_chosen_total")]
    assert sorted(chosen) == [4, 4], chosen
    assert '"prefill_token_us":50' in server.log() and '"decode_fixed_ms":11.5' in server.log()



def test_a_group_is_an_engine() -> None:
    import subprocess

    done = subprocess.run([e2e.BINARY, "serve", "--port", "0", "--engine", "deepinfer", "--engine.deepinfer", "a.toml,b.toml"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "service.engines = 2" in done.stdout
