"""count_tokens and input_tokens before a server whose tokenizer is its own: `nereid gateway` asks it, as that server offers."""

import contextlib
import json

import pytest

from conftest import Server
from fake_server import fake_server

MESSAGES = {"model": "scripted", "messages": [{"role": "user", "content": "Hi there"}], "system": "Be brief.",
            "tools": [{"name": "get_weather", "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}}}]}


@contextlib.contextmanager
def gateway(url):
    front = Server(["gateway", "--port", "0", "--backend", url, "--model-name", "scripted"])
    try:
        yield front
    finally:
        front.stop()
        front.dir.cleanup()


@contextlib.contextmanager
def upstream(answers):
    """A server that answers by path with (status, object); `asked` holds (path, body)."""
    asked = []

    def answer(_, path, raw):
        body = json.loads(raw)
        asked.append((path, body))
        status, found = answers(path, body)
        return status, "application/json", json.dumps(found).encode()
    with fake_server(answer) as url:
        yield url, asked


def count(server):
    return server.request("POST", "/v1/messages/count_tokens", MESSAGES)


def test_counts_before_our_own_server_are_its_own(scripted):
    with gateway(scripted.url) as front:
        wanted = json.loads(count(scripted)[2])["input_tokens"]
        assert json.loads(count(front)[2])["input_tokens"] == wanted > 0
        oai = front.client()
        asked = oai.responses.input_tokens.count(model="scripted", input="Hi there").input_tokens
        assert asked == scripted.client().responses.input_tokens.count(model="scripted", input="Hi there").input_tokens
        billed = front.request("POST", "/v1/messages", {**MESSAGES, "max_tokens": 5})
        assert json.loads(billed[2])["usage"]["input_tokens"] == wanted


def test_vllm_is_asked_with_the_whole_chat():
    with upstream(lambda path, body: (200, {"count": 42, "max_model_len": 99, "tokens": [1] * 42})) as (url, asked), gateway(url) as front:
        assert json.loads(count(front)[2]) == {"input_tokens": 42}
        (path, body), = asked
        assert path == "/tokenize" and body["add_generation_prompt"] is True
        assert [m["role"] for m in body["messages"]] == ["system", "user"] and body["tools"][0]["function"]["name"] == "get_weather"


def test_llama_server_renders_and_then_tokenises():
    def answers(path, body):
        if path == "/apply-template":
            return 200, {"prompt": "<s>" + body["messages"][-1]["content"]}
        return 200, {"tokens": list(range(len(body.get("content", ""))))}
    with upstream(answers) as (url, asked), gateway(url) as front:
        assert json.loads(count(front)[2]) == {"input_tokens": len("<s>Hi there")}
        assert [path for path, _ in asked] == ["/tokenize", "/apply-template", "/tokenize"]
        assert asked[2][1] == {"content": "<s>Hi there", "add_special": True, "parse_special": True}


@pytest.mark.parametrize("status", [400, 404, 405, 422])
def test_a_server_that_cannot_is_named(status):    # SGLang's /tokenize takes texts only
    with upstream(lambda path, body: (status, {"error": "no"})) as (url, _), gateway(url) as front:
        got, _, raw = count(front)
        error = json.loads(raw)["error"]
        assert got == 400 and str(status) in error["message"] and "/tokenize" in error["message"], raw


def test_images_are_fetched_here_also_to_be_counted():
    """No URL of a caller's reaches the server behind: it could ask what only that server may reach."""
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/latest"}}
    with upstream(lambda path, body: (200, {"count": 42})) as (url, asked), gateway(url) as front:
        for path, ask in (("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [image]}]}),
                          ("/v1/responses/input_tokens", {"input": [{"role": "user", "content": [
                              {"type": "input_image", "image_url": image["source"]["url"]}]}]})):
            status, _, raw = front.request("POST", path, {"model": "scripted", **ask})
            assert status == 400 and "could not be fetched" in json.loads(raw)["error"]["message"], raw
        assert asked == []
