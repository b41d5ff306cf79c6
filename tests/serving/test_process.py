"""The command in a process of its own: OpenAI's client, SIGTERM, kill -9, bad arguments."""

import concurrent.futures
import json
import signal
import threading

import httpx
import openai
import pytest

from tests.waiting import until

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 8}


def complete(server, prompt, **fields):
    response = server.http.post("/v1/completions", json={**GREEDY, "prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.slow
def test_the_official_client_works_unchanged(serve, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"key-of-alice-0123456": "alice"}))
    server = serve("--keys", keys)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key-of-alice-0123456") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        messages = [{"role": "user", "content": "hello"}]
        options = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 8}
        answer = client.chat.completions.create(**options)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 8
        stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert said == answer.choices[0].message.content
        assert chunks[-1].usage == answer.usage
        plain = client.completions.create(**GREEDY, prompt="hello", stop=["zz"], seed=1, top_p=0.9)
        kept = client.completions.create(**GREEDY, prompt="hello", user="ann", extra_body={"memory": "work"})
        assert kept.choices[0].text == plain.choices[0].text
        assert kept.memory["memory"] == "work"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt", prompt="x")
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.completions.create(model="tiny", prompt="x", temperature=-1)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


@pytest.mark.slow
def test_sigterm_finishes_what_runs_and_saves_it(serve):
    server = serve(background=True)
    body = {**GREEDY, "prompt": "hello", "memory": "work", "stream": True, "max_tokens": 60}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.process.send_signal(signal.SIGINT)
        assert server.http.get("/healthz").status_code == 200
        server.process.terminate()
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["memory"]["tokens"] == 1 + 5 + 60
    assert server.process.wait(30) == 0
    again = serve()
    assert again.http.get("/v1/memories/default/work").json()["tokens"] == 1 + 5 + 60


@pytest.mark.slow
def test_a_memory_outlives_the_process(serve):
    first = serve()
    said = complete(first, "hello", memory="work")["choices"][0]["text"]
    first.stop()
    second = serve()
    on = complete(second, "and more", memory="work")["choices"][0]["text"]
    assert on == complete(second, "hello" + said + "and more")["choices"][0]["text"]


@pytest.mark.slow
def test_a_client_that_leaves_stops_its_generation(serve):
    server = serve("--max-batch", 1, "--max-queue", 1)
    body = {**GREEDY, "prompt": "hello", "memory": "work", "stream": True, "max_tokens": 4000}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    complete(server, "hello")  # the only place is free again, long before 4,000 tokens
    until(lambda: server.http.get("/v1/memories/default/work").status_code == 200)  # saved beside the next request
    tokens = server.http.get("/v1/memories/default/work").json()["tokens"]
    assert 6 < tokens < 2000


@pytest.mark.slow
def test_a_client_that_leaves_while_its_prompt_is_read_has_asked_nothing(serve):
    server = serve()
    body = {**GREEDY, "prompt": "x" * 100_000, "memory": "work"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=httpx.Timeout(30, read=0.5))
    complete(server, "hello")  # the engine is free again
    assert server.http.get("/v1/memories/default/work").status_code == 404


@pytest.mark.slow
def test_kill_9_loses_requests_in_flight_and_nothing_saved(serve):
    server = serve()
    acknowledged = dict.fromkeys("abcd", 0)
    stop = threading.Event()

    def talk(name):
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not stop.is_set():
                try:
                    body = {**GREEDY, "prompt": name * 5, "max_tokens": 2, "memory": name}
                    acknowledged[name] = http.post("/v1/completions", json=body).json()["memory"]["version"]
                except (httpx.TransportError, ValueError):
                    return

    with concurrent.futures.ThreadPoolExecutor() as pool:
        talks = [pool.submit(talk, name) for name in acknowledged]
        while min(acknowledged.values()) < 5:
            stop.wait(0.05)
        server.process.kill()
        for one in talks:
            one.result(30)
    again = serve()
    for name, version in acknowledged.items():
        info = again.http.get(f"/v1/memories/default/{name}").json()
        assert version <= info["version"] <= version + 1
        assert info["tokens"] == 1 + info["version"] * (5 + 2)
        assert complete(again, "?", memory=name)["memory"]["version"] == info["version"] + 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--host", "0.0.0.0"], "without API keys"),
        (["--write", "gated"], "titans calibrate"),
        (["--write", "often"], "choose one of always"),
        (["--keys", "missing.json"], "missing.json"),
        (["--host", "203.0.113.7", "--keys", "KEYS"], "cannot listen"),
        (["--memories", "config.json/inside"], "config.json"),
    ],
)
def test_bad_arguments(model_folder, tmp_path, monkeypatch, options, sentence):
    from typer.testing import CliRunner

    from titans.cli import app

    monkeypatch.chdir(model_folder)
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"k" * 20: "alice"}))
    options = [str(keys) if option == "KEYS" else option for option in options]
    result = CliRunner().invoke(app, ["serve", str(model_folder), *options])
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"short": "a"}', '{"long-enough-0123456": 3}'])
def test_bad_key_files(tmp_path, content):
    from titans import TitansError
    from titans.serving.access import load_keys

    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(TitansError, match=r"keys\.json"):
        load_keys(tmp_path / "keys.json")
