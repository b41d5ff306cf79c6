"""The API in this process: what OpenAI's clients expect, memories, limits and errors."""

import json

import pytest

from titans.models.write_policy import WritePolicy
from titans.persistence import MemoryStore
from titans.serving.app import Limits

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 8}
KEYS = {"key-of-alice-0123456": "alice", "key-of-bob-012345678": "bob"}


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_completion(client):
    body = client.complete("hello")
    assert (body["object"], body["model"]) == ("text_completion", "tiny")
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14}
    assert body["memory"]["memory"] is None
    assert client.text(["hello"]) == client.text(list(b"hello")) == body["choices"][0]["text"]


def test_a_stream_says_what_the_whole_says(client):
    whole = client.complete("hello")
    body = {**GREEDY, "prompt": "hello", "stream": True, "stream_options": {"include_usage": True}}
    parts = events(client.request("POST", "/v1/completions", json=body))
    assert "".join(c["text"] for part in parts for c in part["choices"]) == whole["choices"][0]["text"]
    assert [c["finish_reason"] for part in parts for c in part["choices"]][-1] == "length"
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]
    assert parts[-2]["memory"] == whole["memory"]
    assert len(parts) > 4


def test_a_chat_is_its_transcript(client):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    body = client.request("POST", "/v1/chat/completions", json={**GREEDY, "messages": messages}).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == client.text("system: be brief\nuser: hi\nassistant:")


def test_a_memory_goes_on_without_the_history(client):
    first = client.text("hello", memory="work")
    second = client.complete("and more", memory="work")
    whole = client.text("hello" + first + "and more")
    assert second["choices"][0]["text"] == whole
    assert second["usage"]["prompt_tokens"] == len("and more")
    assert second["memory"]["tokens"] == 1 + len("hello") + 8 + len("and more") + 8
    assert (second["memory"]["memory"], second["memory"]["user"], second["memory"]["version"]) == (
        "work",
        "default",
        2,
    )
    by_header = client.request(
        "POST", "/v1/completions", json={**GREEDY, "prompt": "x"}, headers={"X-Titans-Memory": "work"}
    ).json()
    assert by_header["memory"]["version"] == 3
    assert client.text("and more", memory="other") == client.text("and more")


def test_memories_at_once_do_not_mix(client):
    prompts = {f"s{i}": f"fact {i} " * (i + 1) for i in range(6)}
    calls = [
        ("POST", "/v1/completions", {"json": {**GREEDY, "prompt": text, "memory": name}})
        for name, text in prompts.items()
    ]
    first = client.gather(*calls)
    asked = [("POST", "/v1/completions", {"json": {**GREEDY, "prompt": "?", "memory": name}}) for name in prompts]
    second = client.gather(*asked)
    for (_, text), one, two in zip(prompts.items(), first, second, strict=True):
        said = one.json()["choices"][0]["text"]
        assert said == client.text(text)
        assert two.json()["choices"][0]["text"] == client.text(text + said + "?")


def test_requests_of_one_memory_come_one_after_the_other(client):
    call = ("POST", "/v1/completions", {"json": {**GREEDY, "prompt": "again", "memory": "one"}})
    answers = [r.json()["memory"] for r in client.gather(*[call] * 5)]
    assert sorted(a["version"] for a in answers) == [1, 2, 3, 4, 5]
    assert max(a["tokens"] for a in answers) == 1 + 5 * (5 + 8)


def test_a_fork_waits_for_the_requests_of_the_memory_that_it_makes(client):
    client.text("hello", memory="a")
    turn = ("POST", "/v1/completions", {"json": {**GREEDY, "prompt": "again", "memory": "b"}})
    fork = ("POST", "/v1/memories/default/a/fork", {"json": {"to": "b"}})
    back = ("POST", "/v1/memories/default/b/fork", {"json": {"to": "a"}})
    answers = [answer.status_code for answer in client.gather(turn, fork, back, fork, back)]
    assert answers[0] == 200  # and not a conflict with what was made meanwhile
    assert set(answers[1:]) <= {200, 404, 409}


def test_memories_are_listed_forked_reset_deleted(client):
    client.text("hello", memory="b")
    client.text("hello", memory="a")
    client.text("hello", memory="c", user="zoe")
    listed = client.request("GET", "/v1/memories").json()
    assert [m["memory"] for m in listed["data"]] == ["a", "b"]
    page = client.request("GET", "/v1/memories?limit=1").json()
    assert [m["memory"] for m in page["data"]] == ["a"]
    assert page["has_more"]
    assert [m["memory"] for m in client.request("GET", "/v1/memories?after=a").json()["data"]] == ["b"]
    assert client.request("GET", "/v1/memories/zoe/c").json()["id"] == "zoe:c"
    forked = client.request("POST", "/v1/memories/default/a/fork", json={"to": "a2"}).json()
    assert forked["tokens"] == 1 + 5 + 8
    assert client.text("?", memory="a") == client.text("?", memory="a2")
    assert client.request("POST", "/v1/memories/default/a/reset").json()["tokens"] == 0
    assert client.text("hello", memory="a") == client.text("hello")
    assert client.request("DELETE", "/v1/memories/default/a").json()["deleted"]
    assert client.error("GET", "/v1/memories/default/a", 404)["code"] == "memory_not_found"
    assert client.error("DELETE", "/v1/memories/default/a", 404)["code"] == "memory_not_found"


def test_a_memory_is_exported_and_imported(client):
    client.text("hello", memory="a")
    data = client.request("GET", "/v1/memories/default/a/export").content
    put = client.request("PUT", "/v1/memories/default/copy/import", content=data).json()
    assert put["tokens"] == 1 + 5 + 8
    assert client.text("?", memory="copy") == client.text("?", memory="a")
    broken = client.error("PUT", "/v1/memories/default/copy/import", 400, content=data[:-1])
    assert broken["type"] == "invalid_request_error"


def test_keys_are_tenants(make_client):
    client = make_client(keys=KEYS)
    assert client.error("POST", "/v1/completions", 401, json={**GREEDY, "prompt": "x"})["code"] == "invalid_api_key"
    alice, bob = ({"headers": {"Authorization": f"Bearer {key}"}} for key in KEYS)
    client.request("POST", "/v1/completions", json={**GREEDY, "prompt": "x", "memory": "mine"}, **alice)
    assert len(client.request("GET", "/v1/memories", **alice).json()["data"]) == 1
    assert client.request("GET", "/v1/memories", **bob).json()["data"] == []
    client.error("GET", "/v1/memories/default/mine", 404, **bob)
    wrong = {"headers": {"Authorization": "Bearer key-of-alice-012345"}}
    client.error("GET", "/v1/memories", 401, **wrong)
    client.request("GET", "/healthz")


@pytest.mark.parametrize("host", ["x/y?", "x/healthz#", "[", "x@y", "", "localhost"])
def test_no_host_passes_by_the_keys(make_client, host):
    client = make_client(keys=KEYS)
    client.error("GET", "/v1/memories", 401, headers={"Host": host})
    client.error("GET", "/v1/memories/", 401, headers={"Host": host})
    known = {"headers": {"Host": host, "Authorization": f"Bearer {next(iter(KEYS))}"}}
    client.request("GET", "/v1/memories", **known)
    client.request("GET", "/v1/memories/", 404, **known)  # and none is sent where the host says


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1}, {"top_p": 2}, {"max_tokens": 0}, {"n": 2}, {"stop": ["a"] * 5}, {"stop": [""]},
        {"memory": "../x"}, {"user": "a:b", "memory": "x"}, {"memory": ""}, {"prompt": [999]}, {"prompt": [-1]},
        {"prompt": "\ud800"}, {"seed": 1 << 70}, {"echo": True}, {"logprobs": 0}, {"write": "sometimes"},
        {"frequency_penalty": 1.5},
        {"response_format": {"type": "json_object"}}, {"functions": [{"name": "f"}]},
        {"user": "John Doe", "memory": "x"}, {"memory": ".."}, {"user": "\ud800"},
        {"prompt": ["a", "b"]}, {"write": "gated"}, {"prompt": {}},
    ],
)  # fmt: skip
def test_bad_requests_are_told_so(client, fields):
    body = json.dumps({**GREEDY, "prompt": "hello", **fields})
    answer = client.request("POST", "/v1/completions", 400, content=body, headers={"Content-Type": "application/json"})
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_what_asks_for_nothing_is_taken(client):
    nothing = {
        "n": 1, "logprobs": None, "echo": False, "suffix": "", "stop": "", "tools": [], "logit_bias": {}, "best_of": 1,
        "presence_penalty": 0, "response_format": {"type": "text"}, "user": "auth0|John Doe", "trace": None,
        "stream": None, "stream_options": {"include_usage": None}, "top_p": None, "tool_choice": "auto",
    }  # fmt: skip
    assert client.text("hello", **nothing) == client.text("hello")
    assert client.text([list(b"hello")]) == client.text("hello")
    assert client.complete("hello", max_tokens=None)["usage"]["completion_tokens"] == 256


def test_a_chat_with_memory_is_the_chat_with_its_history(client):
    def chat(*messages, **fields):
        body = {**GREEDY, "messages": [{"role": role, "content": text} for role, text in messages], **fields}
        return client.request("POST", "/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    said = chat(("user", "hi"), memory="talk")
    told = chat(("user", "and you?"), memory="talk")
    transcript = f"user: hi\nassistant:{said}\nuser: and you?\nassistant:"
    assert told == client.text(transcript)
    assert chat(("user", "hi"), ("assistant", None), ("user", "x"))


def test_bos_stands_at_the_start_of_a_stream_and_nowhere_else(client):
    assert client.complete([256, *b"hello"])["usage"]["prompt_tokens"] == 6
    client.complete([256, *b"hello"], memory="a")
    assert client.complete([256, *b"hello"], memory="a")["usage"]["prompt_tokens"] == 5


def test_an_answer_of_nothing_still_has_a_role(client):
    body = {**GREEDY, "messages": [{"role": "user", "content": "x"}], "stream": True}
    said = client.text("user: x\nassistant:")
    parts = events(client.request("POST", "/v1/chat/completions", json={**body, "stop": said[0]}))
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == ""
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"


def test_reset_keeps_the_way_of_writing(make_client):
    client = make_client(policy=WritePolicy("never"))
    first = client.complete("hello", memory="a")["memory"]
    client.request("POST", "/v1/memories/default/a/reset")
    again = client.complete("hello", memory="a")["memory"]
    assert first["written"] == again["written"] == 0
    assert first["skipped"] == again["skipped"] == again["layers"] * (6 + 8)


def test_writing_changes_where_a_request_asks_for_it(client):
    told = [client.complete("hello", memory="a", write=w)["memory"] for w in (None, "never", None, "always")]
    everything = told[0]["layers"] * 13
    assert [m["written"] for m in told] == [told[0]["layers"] * 14, 0, 0, everything]
    assert [m["skipped"] for m in told] == [0, everything, everything, 0]
    assert told[1]["norm"] == told[2]["norm"] != told[3]["norm"]


def test_a_server_may_forbid_to_write_gated(make_client, model):
    gated = WritePolicy("gated", *[(1.0,) * 2] * 3)
    client = make_client(policy=gated)
    client.text("hello", memory="a")
    client.app.state.service.allow_gated = False
    client.app.state.service.gated = gated
    for fields in ({"write": "gated"}, {"memory": "a"}, {"memory": "b"}, {}):  # asked for, the memory's, the server's
        assert client.complete("x", 400, **fields)["error"]["code"] == "not_allowed"
    assert client.complete("x", memory="a", write="never")["memory"]["written"] == 0


def test_an_empty_header_names_no_memory(client):
    body = {**GREEDY, "prompt": "x"}
    answer = client.request("POST", "/v1/completions", json=body, headers={"X-Titans-Memory": ""}).json()
    assert answer["memory"]["memory"] is None


def test_one_memory_cannot_take_all_places(make_client):
    client = make_client(max_batch=2, max_queue=30)
    call = ("POST", "/v1/completions", {"json": {**GREEDY, "prompt": "again", "memory": "one"}})
    statuses = sorted(r.status_code for r in client.gather(*[call] * 12))
    assert statuses == [200] * 8 + [429] * 4


def test_a_damaged_memory_is_no_mistake_of_the_client(client, model, tmp_path):
    client.text("hello", memory="a")
    client.text("hello", memory="b")
    (file,) = [f for f in (tmp_path / "memories").rglob("*.safetensors") if "a=" in f.parent.name]
    file.write_bytes(file.read_bytes()[:-5])
    client.app.state.service.store = MemoryStore(tmp_path / "memories", model)  # which remembers nothing
    assert client.complete("x", 500, memory="a")["error"]["code"] == "memory_damaged"
    client.complete("x", memory="b")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost/x?"},
        {"Host": "localhost@evil.example"},
        {"Host": "["},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://["},
        {"Origin": "http://localhost]"},
        {"Origin": b"http://\xff"},
        {"Origin": ""},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_pages_of_other_sites_reach_nothing_without_keys(client, headers):
    client.text("hello", memory="a")
    client.error("POST", "/v1/memories/default/a/reset", 403, headers=headers)
    client.error("POST", "/v1/completions", 403, json={**GREEDY, "prompt": "x"}, headers=headers)
    assert client.request("GET", "/v1/memories/default/a").json()["tokens"] == 1 + 5 + 8
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    client.request("POST", "/v1/memories/default/a/reset", headers=own)


def test_a_link_of_another_site_opens_the_page(client):
    follow = {"headers": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}}
    opened = client.request("GET", "/", **follow)
    assert opened.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in opened.headers["content-security-policy"]
    client.request("GET", "/static/app.js", **follow)
    client.error("POST", "/", 403, **follow)
    for path in ("/v1/memories", "/v1/models", "/metrics", "/openapi.json"):
        assert client.error("GET", path, 403, **follow)["code"] == "cross_site"
    client.error("GET", "/", 403, headers={"Host": "evil.example"})


def test_no_key_no_body(make_client):
    client = make_client(keys=KEYS)
    client.error("POST", "/v1/completions", 401, content=b"{")
    client.request("GET", "/metrics")


def test_other_errors(client):
    assert (
        client.error("POST", "/v1/completions", 404, json={"model": "gpt", "prompt": "x"})["code"] == "model_not_found"
    )
    client.error("POST", "/v1/completions", 400, content=b"{", headers={"Content-Type": "application/json"})
    client.error("POST", "/v1/completions", 400, content=b"\xff", headers={"Content-Type": "application/json"})
    client.error("GET", "/v1/nothing", 404)
    client.error("GET", "/v1/completions", 405)
    header = {"X-Titans-Memory": "a:b"}
    client.error("POST", "/v1/completions", 400, json={**GREEDY, "prompt": "x"}, headers=header)


def test_limits(make_client):
    client = make_client(Limits(body=1000, prompt_tokens=20, new_tokens=3))
    assert client.complete("hello")["usage"]["completion_tokens"] == 3
    assert client.complete("x" * 21, 400)["error"]["code"] == "context_length_exceeded"
    assert client.complete("x" * 1001, 413)["error"]["code"] == "body_too_large"

    async def chunks():
        for _ in range(30):
            yield b" " * 100

    assert client.error("POST", "/v1/completions", 413, content=chunks())["code"] == "body_too_large"


def test_a_full_server_says_when_to_come_again(make_client):
    client = make_client(max_batch=1, max_queue=1)
    call = ("POST", "/v1/completions", {"json": {**GREEDY, "prompt": "hello", "max_tokens": 40}})
    answers = client.gather(*[call] * 5)
    assert sorted(a.status_code for a in answers) == [200, 200, 429, 429, 429]
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    client.complete("hello")


def test_metrics_count(client):
    client.complete("hello")
    text = client.request("GET", "/metrics").text
    assert 'titans_requests_total{route="/v1/completions",status="200"} 1.0' in text
    assert "titans_tokens_read_total 13.0" in text  # bos, five bytes, and seven of the eight that were said


def test_models(client):
    assert [m["id"] for m in client.request("GET", "/v1/models").json()["data"]] == ["tiny"]
    assert client.request("GET", "/v1/models/tiny").json()["chat_template"] is False
    client.error("GET", "/v1/models/other", 404)
