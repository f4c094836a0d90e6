"""/v1/files is one path for both vendors: the anthropic SDK's calls, and each vendor's view of the other's files."""

import datetime
import json

import anthropic
import openai
import pytest


def test_the_anthropic_sdk_keeps_files(scripted, claude):
    files = claude.beta.files
    made = files.upload(file=("notes.txt", b"herons\x00", "text/plain"))
    assert (made.type, made.filename, made.mime_type, made.size_bytes, made.downloadable) == ("file", "notes.txt", "text/plain", 7, True)
    age = datetime.datetime.now(datetime.timezone.utc) - made.created_at
    assert abs(age.total_seconds()) < 120 and made.expires_at > made.created_at
    assert files.retrieve_metadata(made.id).to_dict() == made.to_dict()
    assert files.download(made.id).read() == b"herons\x00"
    assert made.id in [f.id for f in files.list()]
    gone = files.delete(made.id)
    assert (gone.id, gone.type) == (made.id, "file_deleted")
    for call in (files.retrieve_metadata, files.download, files.delete):
        with pytest.raises(anthropic.NotFoundError) as none:
            call(made.id)
        assert none.value.body["error"]["type"] == "not_found_error" and none.value.request_id == none.value.body["request_id"]
    soon = files.upload(file=("a", b"x"), expires_in_seconds=3600)
    assert (soon.expires_at - soon.created_at).total_seconds() == 3600
    with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
        files.upload(file=("a", b"x"), expires_in_seconds=5)


def test_pages(claude):
    made = [claude.beta.files.upload(file=(f"{i}", b"x")).id for i in range(5)]
    page = claude.beta.files.list(limit=2)
    assert [f.id for f in page.data] == made[:-3:-1] and page.next_page
    assert [f.id for f in page][:5] == made[::-1], "the SDK goes on page by page"
    newer = claude.get(f"/v1/files?limit=2&before_id={made[0]}", cast_to=object)    # as older SDKs ask
    assert [f["id"] for f in newer["data"]] == [made[2], made[1]] and newer["has_more"]
    with pytest.raises(anthropic.BadRequestError):
        claude.beta.files.list(page="7")
    named = claude.beta.files.list(ids=[made[3], "file-none", made[0]])
    assert [f.id for f in named.data] == [made[3], made[0]] and named.next_page is None
    with pytest.raises(anthropic.BadRequestError):
        claude.beta.files.list(ids=[f"file-{i}" for i in range(101)])


def test_each_vendor_sees_the_others(scripted, claude):
    oai = scripted.client()
    theirs = oai.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    seen = claude.beta.files.retrieve_metadata(theirs.id)
    assert seen.size_bytes == theirs.bytes == 2 and seen.created_at.timestamp() == theirs.created_at and seen.mime_type
    ours = claude.beta.files.upload(file=("a.pdf", b"%PDF", "application/pdf"))
    seen = oai.files.retrieve(ours.id)
    assert (seen.object, seen.purpose, seen.bytes, seen.filename) == ("file", "user_data", 4, "a.pdf")
    assert isinstance(seen.created_at, int) and seen.to_dict()["mime_type"] == "application/pdf"
    assert oai.files.delete(ours.id).deleted and claude.beta.files.delete(theirs.id).type == "file_deleted"


def test_purpose_may_be_missing_for_anthropics_clients_only(scripted):
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--b--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=b"}
    status, headers, raw = scripted.request("POST", "/v1/files", body, kind)
    assert status == 400 and json.loads(raw)["error"]["param"] == "purpose" and "request-id" not in headers
    status, headers, raw = scripted.request("POST", "/v1/files", body, {**kind, "anthropic-version": "2023-06-01"})
    assert status == 200 and json.loads(raw)["purpose"] == "user_data" and headers["request-id"]
    status, headers, raw = scripted.request("POST", "/v1/files", b"x", {**kind, "anthropic-version": "2023-06-01"})
    error = json.loads(raw)
    assert status == 400 and error["type"] == "error" and error["request_id"] == headers["request-id"]


def test_a_file_of_the_anthropic_sdk_is_read_in_a_message(claude):
    made = claude.beta.files.upload(file=("memory.txt", b"heron-test-memory", "text/plain"))
    answer = claude.beta.messages.create(model="scripted", max_tokens=100, messages=[{"role": "user", "content": [
        {"type": "document", "source": {"type": "file", "file_id": made.id}}, {"type": "text", "text": "what does it say?"}]}])
    assert answer.content[-1].text == "I remember the heron."


def test_openai_s_expiry(scripted):
    made = scripted.client().files.create(file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 7200})
    assert made.expires_at - made.created_at == 7200
    with pytest.raises(openai.BadRequestError):
        scripted.client().files.create(file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 1})
