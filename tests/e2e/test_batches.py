"""Files, batches of both vendors, and repeated requests."""

import json
import threading

import anthropic
import openai
import pytest

from conftest import parse_events, wait_for


def lines(n, model="scripted", endpoint="/v1/chat/completions"):
    body = {"model": model, "messages": [{"role": "user", "content": "say-hi"}], "stream": True}
    return "".join(json.dumps({"custom_id": f"c{i}", "method": "POST", "url": endpoint, "body": body}) + "\n" for i in range(n))


def ended(oai, batch):
    return wait_for(lambda: (b := oai.batches.retrieve(batch.id)).status in ("completed", "failed", "cancelled") and b, 60, "batch")


def test_files(scripted):
    oai = scripted.client()
    made = oai.files.create(file=("a \"b\".jsonl", b"\x00line\r\n--x\r\n"), purpose="batch")
    assert made.bytes == 12 and made.filename == 'a "b".jsonl' and made.purpose == "batch"
    assert oai.files.content(made.id).read() == b"\x00line\r\n--x\r\n"
    assert oai.files.retrieve(made.id).id == made.id
    assert made.id in [f.id for f in oai.files.list(purpose="batch")]
    assert oai.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        oai.files.content(made.id)
    for body, kind in ((b"x", "multipart/form-data"), (b"--x\r\n\r\nz", "multipart/form-data; boundary=x"), (b"{}", "application/json")):
        assert scripted.request("POST", "/v1/files", body, {"content-type": kind})[0] == 400


def test_batch(scripted):
    oai = scripted.client()
    text = lines(6) + lines(1, model="nope").replace("c0", "bad")
    file = oai.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    batch = oai.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"k": "v"})
    assert batch.status == "validating" and batch.metadata == {"k": "v"}
    done = ended(oai, batch)
    assert done.status == "completed" and done.request_counts.model_dump() == {"total": 7, "completed": 6, "failed": 1}
    results = [json.loads(line) for line in oai.files.content(done.output_file_id).text.splitlines()]
    assert [r["custom_id"] for r in results] == [f"c{i}" for i in range(6)]
    assert all(r["response"]["body"]["choices"][0]["message"]["content"] == "Hi there, friend." for r in results)
    errors = [json.loads(line) for line in oai.files.content(done.error_file_id).text.splitlines()]
    assert errors[0]["custom_id"] == "bad" and errors[0]["response"]["status_code"] == 404
    assert batch.id in [b.id for b in oai.batches.list()]


@pytest.mark.parametrize("text, code", [("{", "invalid_json_line"), (lines(1) * 2, "duplicate_custom_id"),
                                        (lines(1, endpoint="/v1/embeddings"), "mismatched_endpoint"), ("\n", "empty_file")])
def test_batch_with_bad_lines_fails_whole(scripted, text, code):
    oai = scripted.client()
    file = oai.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    batch = oai.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    done = ended(oai, batch)
    assert done.status == "failed" and done.errors.data[0].code == code


def test_batch_that_cannot_be(scripted):
    oai = scripted.client()
    with pytest.raises(openai.NotFoundError):
        oai.batches.create(input_file_id="file-x", endpoint="/v1/chat/completions", completion_window="24h")
    with pytest.raises(openai.BadRequestError):
        oai.batches.create(input_file_id="file-x", endpoint="/v1/images", completion_window="24h")


def test_batch_is_cancelled(scripted):
    oai = scripted.client()
    text = lines(8).replace("say-hi", "say-forever")
    file = oai.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    batch = oai.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    wait_for(lambda: oai.batches.retrieve(batch.id).status == "in_progress", 20, "in_progress")
    oai.batches.cancel(batch.id)
    assert ended(oai, batch).status == "cancelled"
    wait_for(lambda: scripted.metric_sum("nereid_engine_running") == 0, 20, "engine is free again")


def test_pages_of_files_and_batches(scripted):
    oai, claude = scripted.client(), scripted.anthropic()
    wanted = [oai.files.create(file=("a", b"x"), purpose=purpose).id for purpose in ("evals", *["user_data"] * 5, "evals")]
    assert [f.id for f in oai.files.list(purpose="evals", limit=1)] == [wanted[-1], wanted[0]]
    params = {"model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    made = [claude.messages.batches.create(requests=[{"custom_id": "a", "params": params}]).id for _ in range(4)]
    assert [b.id for b in claude.messages.batches.list(limit=2, before_id=made[0])][:2] == [made[2], made[1]]
    newer = [b.id for b in claude.messages.batches.list(limit=1, before_id=made[0])]
    assert newer == made[1:], "the SDK pages towards the newest"
    status, _, raw = scripted.request("GET", f"/v1/messages/batches?before_id={made[0]}&after_id={made[1]}")
    assert status == 400 and json.loads(raw)["type"] == "error"


def test_batches_say_what_is_wrong_with_them(scripted):
    file = scripted.client().files.create(file=("a", lines(1).encode()), purpose="batch").id
    good = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for change, param in (({"completion_window": "1y"}, "completion_window"), ({"metadata": 5}, "metadata")):
        status, _, raw = scripted.request("POST", "/v1/batches", {**good, **change})
        assert status == 400 and json.loads(raw)["error"]["param"] == param


def test_message_batch(scripted):
    claude = scripted.anthropic()
    params = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "say-hi"}]}
    search = {**params, "max_tokens": 500, "messages": [{"role": "user", "content": "search-over-lines"}],
              "tools": [{"name": "tool_search", "input_schema": {"type": "object"}}]}
    batch = claude.messages.batches.create(requests=[{"custom_id": "a", "params": params},
                                                     {"custom_id": "b", "params": {**params, "model": "nope"}},
                                                     {"custom_id": "c", "params": search}])
    assert batch.processing_status == "in_progress" and batch.request_counts.processing == 3
    done = wait_for(lambda: (b := claude.messages.batches.retrieve(batch.id)).processing_status == "ended" and b, 30, "batch")
    assert (done.request_counts.succeeded, done.request_counts.errored) == (2, 1)
    results = {r.custom_id: r.result for r in claude.messages.batches.results(batch.id)}
    assert results["a"].message.content[0].text == "Hi there, friend."
    assert results["c"].message.content[0].input == {"query": "herons"}    # one line of the results, though the model wrote four
    assert results["b"].type == "errored" and results["b"].error.error.type == "not_found_error"
    assert batch.id in [b.id for b in claude.messages.batches.list()]
    claude.messages.batches.delete(batch.id)
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(batch.id)


def test_message_batch_is_cancelled(scripted):
    claude = scripted.anthropic()
    params = {"model": "scripted", "max_tokens": 1_000_000, "messages": [{"role": "user", "content": "say-forever"}]}
    batch = claude.messages.batches.create(requests=[{"custom_id": f"c{i}", "params": params} for i in range(6)])
    wait_for(lambda: scripted.metric_sum("nereid_engine_running") > 0, 20, "it runs")
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.batches.delete(batch.id)    # not while it runs
    told = claude.messages.batches.cancel(batch.id)
    assert told.processing_status in ("canceling", "ended") and told.cancel_initiated_at
    done = wait_for(lambda: (b := claude.messages.batches.retrieve(batch.id)).processing_status == "ended" and b, 30, "batch")
    assert done.request_counts.model_dump() == {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 6, "expired": 0}
    assert done.cancel_initiated_at and done.ended_at
    results = {r.custom_id: r.result.type for r in claude.messages.batches.results(batch.id)}
    assert results == {f"c{i}": "canceled" for i in range(6)}
    assert claude.messages.batches.cancel(batch.id).processing_status == "ended"
    wait_for(lambda: scripted.metric_sum("nereid_engine_running") == 0, 20, "engine is free again")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.cancel("msgbatch_none")


# ---- Idempotency-Key

def ask(server, key, text, stream=False, path="/v1/chat/completions"):
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], "stream": stream, "max_tokens": 100}
    return server.request("POST", path, body, {"idempotency-key": key})


def test_repeated_request_gets_the_first_answer(scripted):
    first = ask(scripted, "key-1", "say-hi")
    # Who comes before it is kept joins what has just ended: the same bytes, but no replay.
    second = wait_for(lambda: (reply := ask(scripted, "key-1", "say-hi"))[1].get("idempotent-replayed") == "true" and reply, 20, "kept")
    assert first[0] == second[0] == 200 and first[2] == second[2] and json.loads(first[2])["id"].startswith("chatcmpl-")
    status, headers, _ = ask(scripted, "key-1", "think-first")
    assert status == 409 and headers["x-should-retry"] == "false"    # SDKs repeat a 409 otherwise
    assert ask(scripted, "key-2", "say-hi")[2] != first[2]
    streamed = [ask(scripted, "key-3", "say-hi", stream=True) for _ in range(2)]
    assert streamed[0][2] == streamed[1][2] and parse_events(streamed[0][2])[-1][1] == "[DONE]"


def test_repeated_request_joins_the_running_one(scripted):
    before = scripted.metric_sum("nereid_gateway_tokens_total")
    replies = [None] * 3

    def run(i):
        replies[i] = ask(scripted, "key-join", "say-slowly", stream=True, path="/v1/messages")
    threads = [threading.Thread(target=run, args=[i]) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(r[0] == 200 for r in replies) and len({r[2] for r in replies}) == 1
    assert scripted.metric_sum("nereid_gateway_tokens_total") - before < 150    # it ran once


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("text", ["refuse-now", "fail-later"])
def test_streams_that_broke_are_not_kept(scripted, path, text):
    key = f"key-broken-{path}-{text}"
    ask(scripted, key, text, stream=True, path=path)
    scripted.request("GET", "/health")
    again = ask(scripted, key, text, stream=True, path=path)
    assert b"error" in again[2] and "idempotent-replayed" not in again[1]


def test_answers_that_say_later_are_not_kept(scripted):
    first, second = (ask(scripted, "key-later", "refuse-now") for _ in range(2))
    assert first[0] == second[0] == 503 and "idempotent-replayed" not in second[1]
    assert json.loads(first[2]) and first[1]["x-request-id"] != second[1]["x-request-id"]
