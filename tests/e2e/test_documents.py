"""Documents from the client to the model, as text: PDF and text, sent in the request, as stored files, by URL; in messages and in
tools' results. The scripted engine answers to what it reads."""

import base64
import contextlib
import json

import anthropic
import openai
import pytest

from conftest import parse_events, red_png
from fake_server import fake_server

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
ALL = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
ANSWER = "Hi there, friend."    # to say-hi


def pdf(text="say-hi", password=False):
    content = f"BT /F 12 Tf 20 100 Td ({text}) Tj ET"
    objects = ["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>",
               "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
               f"<</Length {len(content)}>>stream\n{content}\nendstream", "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    if password:    # RC4 with keys that nobody has
        objects.append(f"<</Filter/Standard/V 1/R 2/P -4/O<{'00' * 32}>/U<{'11' * 32}>>>")
    out, places = b"%PDF-1.4\n", []
    for i, body in enumerate(objects):
        places.append(len(out))
        out += f"{i + 1} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{at:010} 00000 n \n" for at in places)
    more = "/Encrypt 6 0 R/ID[<00><00>]" if password else ""
    return out + (f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer<</Size {len(objects) + 1}/Root 1 0 R{more}>>\n"
                  f"startxref\n{len(out)}\n%%EOF\n").encode()


def document(path, data=None, media="application/pdf", name="nymphs.pdf", file_id=None, url=None):
    """The content part of `path`'s dialect."""
    text = data and base64.b64encode(data).decode()
    if path == MESSAGES:
        source = {"type": "file", "file_id": file_id} if file_id else {"type": "url", "url": url} if url else {
            "type": "base64", "media_type": media, "data": text}
        return {"type": "document", "title": name, "source": source}
    fields = {"file_id": file_id} if file_id else {"file_url": url} if url else {
        "filename": name, "file_data": f"data:{media};base64,{text}"}
    return {"type": "file", "file": fields} if path == CHAT else {"type": "input_file", **fields}


def body(path, *parts):
    content = [{"type": "input_text" if path == RESPONSES else "text", "text": "What is in it?"}, *parts]
    turn = [{"role": "user", "content": content}]
    return {"model": "scripted", "input": turn} if path == RESPONSES else {"model": "scripted", "max_tokens": 200, "messages": turn}


def text_of(path, raw):
    answer = json.loads(raw)
    if path == CHAT:
        return answer["choices"][0]["message"]["content"]
    blocks = answer["content"] if path == MESSAGES else answer["output"][-1]["content"]
    return blocks[-1]["text"]


@contextlib.contextmanager
def web(bytes_, media_type="application/pdf", status=200):
    with fake_server(lambda *_: (status, media_type, bytes_)) as url:
        yield f"{url}/file"


def prompt_tokens(path, raw):
    usage = json.loads(raw)["usage"]
    return usage["prompt_tokens" if path == CHAT else "input_tokens"] + usage.get("cache_read_input_tokens", 0)


@ALL
@pytest.mark.parametrize("data, media", [(pdf(), "application/pdf"), (b"\xef\xbb\xbfPlease say-hi, \xc3\xa9.", "text/plain"),
                                         (b'{"please": "say-hi"}', "application/json"), (pdf(), "application/octet-stream"),
                                         (b"head = b'%PDF-1.4'  # say-hi", "text/x-python"), (b"\r\n\xff" + pdf(), "text/plain")],
                         ids=["pdf", "text", "json", "unnamed pdf", "text of a pdf", "pdf after a bit"])
def test_the_model_reads_it(scripted, path, data, media):
    status, _, raw = scripted.request("POST", path, body(path, document(path, data, media)))
    assert status == 200 and text_of(path, raw) == ANSWER, raw
    # The whole text and its name are in the prompt.
    status, _, other = scripted.request("POST", path, body(path, document(path, data, media, name="n")))
    assert prompt_tokens(path, raw) - prompt_tokens(path, other) == len("nymphs.pdf") - len("n")


@ALL
def test_stored_files(scripted, path):
    oai = scripted.client()
    for name, data in (("nymphs.pdf", pdf()), ("notes.md", b"# say-hi")):
        file = oai.files.create(file=(name, data), purpose="user_data")
        status, _, raw = scripted.request("POST", path, body(path, document(path, file_id=file.id)))
        assert status == 200 and text_of(path, raw) == ANSWER, raw
        oai.files.delete(file.id)
        status, _, raw = scripted.request("POST", path, body(path, document(path, file_id=file.id, name="x")))
        assert status == 404 and "No such File" in json.loads(raw)["error"]["message"], raw


def test_stored_images(seeing):
    oai = seeing.client()
    file = oai.files.create(file=("red.png", red_png()), purpose="vision")
    for path, part in ((RESPONSES, {"type": "input_image", "file_id": file.id}),
                       (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": file.id}})):
        ask = body(path, part)
        ask["input" if path == RESPONSES else "messages"][0]["content"][0]["text"] = "what-do-you-see"
        status, _, raw = seeing.request("POST", path, ask)
        assert status == 200 and text_of(path, raw).startswith(f"I see {len(red_png())} bytes"), raw


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])    # Chat names no files by URL
def test_by_url(seeing, scripted, path):
    with web(pdf()) as url:
        status, _, raw = seeing.request("POST", path, body(path, document(path, url=url)))
        assert status == 200 and text_of(path, raw) == ANSWER, raw
        status, _, raw = scripted.request("POST", path, body(path, document(path, url=url)))
        assert status == 400 and "could not be fetched" in json.loads(raw)["error"]["message"], raw
    with web(b"gone", "text/plain", 410) as url:
        status, _, raw = seeing.request("POST", path, body(path, document(path, url=url)))
        assert status == 400 and "status 410" in json.loads(raw)["error"]["message"], raw


@ALL
@pytest.mark.parametrize("data, media, why", [
    (b"PK\x03\x04\0\0", "application/vnd.openxmlformats-officedocument.wordprocessingml.document", "neither UTF-8 text nor a PDF"),
    (red_png(), "image/png", "a content part of its own"), (pdf()[:40], "application/pdf", "damaged PDF"), (pdf(""), "application/pdf", "without text"),
    (pdf(password=True), "application/pdf", "password")], ids=["docx", "image", "damaged", "no text", "encrypted"])
def test_what_cannot_be_read_is_refused_where_it_stands(scripted, path, data, media, why):
    good = document(path, pdf())
    status, _, raw = scripted.request("POST", path, body(path, good, document(path, data, media, name="second.x")))
    error = json.loads(raw)["error"]
    assert status == 400 and why in error["message"] and "second.x" in error["message"], raw
    assert "[2]" in error["message"] + str(error.get("param")), raw


def documents_read(server):
    text = server.request("GET", "/metrics")[2].decode()
    return {r: int(float(line.rsplit(" ", 1)[1])) for line in text.splitlines() if line.startswith("nereid_gateway_documents_total")
            for r in ("text", "pdf", "refused") if f'"{r}"' in line}


def test_a_tools_result_is_read_or_noted(scripted):
    """An agent could never go on after a refusal: a note stands for what cannot be read."""
    before, used = documents_read(scripted), {MESSAGES: [], RESPONSES: []}
    for data in (pdf(), pdf()[:40]):
        call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [document(MESSAGES, data)]}]}]
        items = [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "c", "output": [document(RESPONSES, data)]}]
        for path, ask in ((MESSAGES, {"max_tokens": 99, "messages": turns}), (RESPONSES, {"input": items})):
            status, _, raw = scripted.request("POST", path, {"model": "scripted", **ask})
            assert status == 200, raw
            used[path].append(prompt_tokens(path, raw))
    after = documents_read(scripted)
    assert after["pdf"] - before["pdf"] == 2 and after["refused"] - before["refused"] == 2
    note = "[Something that cannot be shown: The file 'nymphs.pdf' is a damaged PDF.]\n"
    for read, noted in used.values():    # one token a byte
        assert noted - read == len(note) - len('<document name="nymphs.pdf">\nsay-hi\n</document>\n')


BAD = [{"data": pdf("")}, {"data": b"\0\1", "media": "image/png"}, {"file_id": "file-gone"}, {"url": "http://127.0.0.1:1/x"}]


@pytest.mark.parametrize("bad", [*BAD, "***"], ids=["no text", "image", "gone", "private", "no base64"])
def test_no_attachment_of_a_tool_ends_a_session(scripted, bad):
    def part(path):
        made = document(path, **(BAD[0] if bad == "***" else {"data": None, **bad}))
        if bad == "***" and path == MESSAGES:
            made["source"]["data"] = bad
        elif bad == "***":
            (made["file"] if path == CHAT else made)["file_data"] = bad
        return made
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "PDF file read: x.pdf"}
    user, asked = {"role": "user", "content": "x"}, {"role": "assistant", "content": [call]}
    note = len("[Something that cannot be shown: ")

    def check(path, ask, without):    # one token a byte
        status, _, raw = scripted.request("POST", path, {"model": "scripted", **ask})
        assert status == 200, raw
        assert prompt_tokens(path, raw) > prompt_tokens(path, scripted.request("POST", path, {"model": "scripted", **without})[2]) + note
    # Inside the result, and beside it, as Claude Code's Read says a PDF.
    for content in ([{**result, "content": [part(MESSAGES)]}], [result, part(MESSAGES)]):
        ask, without = ({"max_tokens": 99, "messages": [user, asked, {"role": "user", "content": c}]} for c in (content, [{**result, "content": ""}]))
        check(MESSAGES, ask, without)
    ask, without = ({"input": [user, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                               {"type": "function_call_output", "call_id": "c", "output": o}]} for o in ([part(RESPONSES)], ""))
    check(RESPONSES, ask, without)
    if "url" not in bad:    # Chat names no files by URL
        calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        ask, without = ({"messages": [user, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c", "content": c}]}
                        for c in ([part(CHAT)], ""))
        check(CHAT, ask, without)


def test_images_of_tools_that_the_model_cannot_see(scripted, seeing):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": red_png(base64=True)}}
    broken = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    for server, picture in ((scripted, image), (seeing, broken)):
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [picture]}]}]
        ask = {"model": "scripted", "max_tokens": 99, "messages": turns}
        status, _, raw = server.request("POST", MESSAGES, ask)
        assert status == 200, raw
        counted = json.loads(server.request("POST", "/v1/messages/count_tokens", ask)[2])["input_tokens"]
        assert counted == prompt_tokens(MESSAGES, raw)
        ask["messages"] = [{"role": "user", "content": [picture]}]
        status, _, raw = server.request("POST", MESSAGES, ask)
        assert status == 400 and json.loads(raw)["error"]["message"].startswith("messages[0].content[0].image"), raw


def test_errors_name_attachments_as_anthropic_does(scripted):
    """Claude Code goes on without an attachment whose kind it reads in the path."""
    raw = scripted.request("POST", MESSAGES, body(MESSAGES, document(MESSAGES, pdf(""))))[2]
    assert json.loads(raw)["error"]["message"].startswith("messages[0].content[1].document.source.data: "), raw


def test_earlier_turns_do_not_fail_for_files_that_have_gone(scripted):
    oai = scripted.client()
    file = oai.files.create(file=("a.txt", b"say-hi"), purpose="user_data")
    first = oai.responses.create(model="scripted", input=body(RESPONSES, document(RESPONSES, file_id=file.id))["input"])
    assert first.output_text == ANSWER
    with_it = oai.responses.create(model="scripted", input="x", previous_response_id=first.id)
    assert with_it.output_text == ANSWER    # what is asked for stands in the file
    oai.files.delete(file.id)
    without = oai.responses.create(model="scripted", input="x", previous_response_id=first.id)
    note = len("[Something that cannot be shown: No such File object: ") - len('<document name="a.txt">\nsay-hi\n</document>\n')
    assert without.usage.input_tokens > with_it.usage.input_tokens + note


def test_counts_are_what_is_billed(scripted):
    part = document(MESSAGES, pdf())
    ask = body(MESSAGES, part)
    used = prompt_tokens(MESSAGES, scripted.request("POST", MESSAGES, ask)[2])
    del ask["max_tokens"]
    assert json.loads(scripted.request("POST", "/v1/messages/count_tokens", ask)[2])["input_tokens"] == used
    ask = body(RESPONSES, document(RESPONSES, pdf()))
    used = prompt_tokens(RESPONSES, scripted.request("POST", RESPONSES, ask)[2])
    assert json.loads(scripted.request("POST", "/v1/responses/input_tokens", ask)[2])["input_tokens"] == used


def test_sdks_and_a_second_turn(scripted, claude):
    oai = scripted.client()
    first = oai.responses.create(model="scripted", input=body(RESPONSES, document(RESPONSES, pdf()))["input"])
    assert first.output_text == ANSWER
    again = oai.responses.create(model="scripted", input="And now?", previous_response_id=first.id)
    assert again.usage.input_tokens > first.usage.input_tokens    # it still stands in the conversation
    said = claude.messages.create(model="scripted", max_tokens=99, messages=body(MESSAGES, document(MESSAGES, pdf()))["messages"])
    assert said.content[0].text == ANSWER
    with pytest.raises(anthropic.BadRequestError, match="damaged"):
        claude.messages.create(model="scripted", max_tokens=9, messages=body(MESSAGES, document(MESSAGES, b"%PDF-"))["messages"])
    with pytest.raises(openai.BadRequestError, match="base64"):
        oai.chat.completions.create(model="scripted", messages=[{"role": "user", "content": [
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "***"}}]}])


def test_documents_in_messages_of_text_and_content(scripted, claude):
    ask = dict(model="scripted", max_tokens=50)
    for source in ({"type": "content", "content": [{"type": "text", "text": "say-hi"}]},
                   {"type": "text", "media_type": "text/plain", "data": "%PDF-1.4 say-hi"}):
        part = {"type": "document", "title": "T", "context": "C", "source": source}
        assert claude.messages.create(**ask, messages=[{"role": "user", "content": [part]}]).content[0].text == ANSWER


def test_without_a_reader(serve):
    server = serve("--engine", "scripted", "--gateway.pdf-reader", "no-such-program")
    status, _, raw = server.request("POST", CHAT, body(CHAT, document(CHAT, pdf())))
    assert status == 400 and "no-such-program does not run here" in json.loads(raw)["error"]["message"], raw
    off = serve("--engine", "scripted", "--gateway.pdf-reader", "")
    assert json.loads(off.request("GET", "/v1/models/scripted")[2])["capabilities"]["documents"] == ["text"]
    status, _, raw = off.request("POST", CHAT, body(CHAT, document(CHAT, pdf())))
    assert status == 400 and "reads no PDFs" in json.loads(raw)["error"]["message"], raw
    assert off.request("POST", CHAT, body(CHAT, document(CHAT, b"plain", "text/plain")))[0] == 200


def test_streams_too(scripted):
    ask = body(RESPONSES, document(RESPONSES, pdf()))
    events = parse_events(scripted.request("POST", RESPONSES, {**ask, "stream": True})[2])
    assert events[-1][0] == "response.completed" and events[-1][1]["response"]["output"][0]["content"][0]["text"] == ANSWER


def test_images_in_a_document_of_blocks(seeing):
    ask = body(MESSAGES, {"type": "document", "source": {"type": "content", "content": [
        {"type": "text", "text": "what-do-you-see"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": red_png(base64=True)}}]}})
    status, _, raw = seeing.request("POST", MESSAGES, ask)
    assert status == 200 and text_of(MESSAGES, raw).startswith(f"I see {len(red_png())} bytes"), raw
