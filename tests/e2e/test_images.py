"""Images from the client to the engine: data: URLs, URLs, base64; in messages and in tools' results. The scripted engine says what
reached it: sizes and digests."""

import base64
import contextlib
import hashlib
import json

import pytest

from conftest import red_png
from fake_server import fake_server

PNG = red_png()
SEEN = f"{len(PNG)} bytes {hashlib.sha256(PNG).hexdigest()[:8]}"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@contextlib.contextmanager
def web(bytes_, media_type="image/png", status=200):
    """A web server with one image; yields its URL and the list of paths asked for."""
    asked = []

    def answer(_, path, __):
        asked.append(path)
        return status, media_type, bytes_
    with fake_server(answer) as url:
        yield f"{url}/red.png", asked


def body(path, *urls):
    """A question with images in the dialect of `path`."""
    def source(url):
        if url.startswith("data:"):
            return {"type": "base64", "media_type": url[5:url.index(";")], "data": url[url.index(",") + 1:]}
        return {"type": "url", "url": url}
    text = "what-do-you-see"
    if path == CHAT:
        content = [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": u}} for u in urls)]
    elif path == MESSAGES:
        content = [{"type": "text", "text": text}, *({"type": "image", "source": source(u)} for u in urls)]
    else:
        return {"model": "scripted", "input": [{"role": "user", "content": [
            {"type": "input_text", "text": text}, *({"type": "input_image", "image_url": u} for u in urls)]}]}
    return {"model": "scripted", "max_tokens": 200, "messages": [{"role": "user", "content": content}]}


def text_of(path, raw):
    answer = json.loads(raw)
    if path == CHAT:
        return answer["choices"][0]["message"]["content"]
    return (answer["content"][0] if path == MESSAGES else answer["output"][0]["content"][0])["text"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_data_and_url_reach_the_engine(seeing, path):
    data = "data:image/png;base64," + red_png(base64=True)
    with web(PNG) as (url, asked):
        status, _, raw = seeing.request("POST", path, body(path, data, url))
        assert status == 200, raw
        assert text_of(path, raw) == f"I see {SEEN}, {SEEN}" and asked == ["/red.png"]


def test_image_in_a_tools_result(seeing):    # A82
    image = {"type": "input_image", "image_url": "data:image/png;base64," + red_png(base64=True)}
    status, _, raw = seeing.request("POST", RESPONSES, {"model": "scripted", "input": [
        {"role": "user", "content": "what-do-you-see"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "here"}, image]}]})
    assert status == 200, raw
    assert text_of(RESPONSES, raw) == f"I see {SEEN}"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_A95_what_is_no_image_is_refused(seeing, path):
    status, _, raw = seeing.request("POST", path, body(path, "data:image/webp;base64,QUJD"))
    assert status == 400 and "unsupported image media type" in json.loads(raw)["error"]["message"], raw


BOMB = b"GIF89a" + (60000).to_bytes(2, "little") * 2 + b"\x80\0\0" + bytes(6) + b",\0\0\0\0" + (60000).to_bytes(2, "little") * 2 + b"\0\2\2L\1\0;"


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("bytes_, why", [(PNG[:50], "damaged"), (BOMB, "too large"), (b"BM" + bytes(60), "unsupported image media type")],
                         ids=["damaged", "bomb", "bmp"])
def test_images_are_decoded_and_named_where_they_stand(seeing, path, bytes_, why):
    good, bad = (f"data:image/png;base64,{base64.b64encode(b).decode()}" for b in (PNG, bytes_))
    status, _, raw = seeing.request("POST", path, body(path, good, bad))
    assert status == 400 and why in json.loads(raw)["error"]["message"], raw
    assert b"[2]" in raw, raw    # the third part of the message
    assert seeing.request("POST", path, body(path, good))[0] == 200


def test_a_url_that_fails_is_the_callers(seeing):
    with web(b"gone", "text/plain", 404) as (url, _):
        status, _, raw = seeing.request("POST", CHAT, body(CHAT, url))
        assert status == 400 and "404" in json.loads(raw)["error"]["message"], raw
    with web(b"<html>", "text/html") as (url, _):
        status, _, raw = seeing.request("POST", CHAT, body(CHAT, url))
        assert status == 400 and "no image" in json.loads(raw)["error"]["message"], raw


def test_a_private_address_is_not_asked(serve, tmp_path):
    script = tmp_path / "script.toml"
    script.write_text("images = true\n")
    careful = serve("--engine", "scripted", "--script", str(script))
    with web(PNG) as (url, asked):
        status, _, raw = careful.request("POST", CHAT, body(CHAT, url))
        assert status == 400 and "could not be fetched" in json.loads(raw)["error"]["message"], raw
        assert asked == []


def test_models_say_that_they_see(seeing, scripted):
    sees = [json.loads(s.request("GET", "/v1/models/scripted")[2])["capabilities"]["images"] for s in (seeing, scripted)]
    assert sees == [True, False]
