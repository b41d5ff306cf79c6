"""What a request holds that this server does not do, or that is misspelt, is refused in one sentence that names it."""

import pytest

from tests.serving.conftest import ALWAYS, GREEDY, Client
from titans.persistence import MemoryStore
from titans.serving import requests
from titans.serving.app import Limits, create_app
from titans.serving.engine import Engine
from titans.serving.metrics import Metrics
from titans.serving.service import Service


@pytest.fixture(scope="module")
def client(model, tokenizer, tmp_path_factory):
    store = MemoryStore(tmp_path_factory.mktemp("memories"), model)
    service = Service(Engine(model, tokenizer), store, ALWAYS, None, 64)
    with Client(create_app(service, "tiny", None, Metrics(), Limits())) as client:
        yield client


COMPLETIONS, CHAT, FORK = "/v1/completions", "/v1/chat/completions", "/v1/memories/default/a/fork"
PROMPT = {**GREEDY, "prompt": "hello"}
HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def said(*messages, **more):
    return {**GREEDY, "messages": list(messages), **more}


WRONG = [
    (COMPLETIONS, {**PROMPT, "memroy": "notes"}, "memroy", "memroy: no field of this request, did you mean memory?"),
    (COMPLETIONS, {**PROMPT, "max_completion_tokens": 5}, "max_completion_tokens", "did you mean max_tokens?"),
    (COMPLETIONS, {**PROMPT, "best": 5}, "best", "best: no field of this request, leave it out"),
    (COMPLETIONS, {**PROMPT, "messages": [HELLO]}, "messages", "messages: no field"),
    (COMPLETIONS, {**PROMPT, "prompt": ["a", "b"]}, "prompt", "prompt: 2 prompts, send one"),
    (COMPLETIONS, {**PROMPT, "prompt": [[1], [2], [3]]}, "prompt", "prompt: 3 prompts"),
    (COMPLETIONS, {**PROMPT, "prompt": [1, "a"]}, "prompt[1]", "prompt[1]: Input should be a valid integer"),
    (COMPLETIONS, {**PROMPT, "prompt": [True]}, "prompt[0]", "prompt[0]: Input should be a valid integer"),
    (COMPLETIONS, {**PROMPT, "prompt": [-1] * 100_000}, "prompt[0]", "should be greater than or equal to 0"),
    (COMPLETIONS, {**PROMPT, "prompt": {}}, "prompt", "prompt: Input should be a valid list"),
    (COMPLETIONS, GREEDY, "prompt", "prompt: Field required"),
    (COMPLETIONS, {**PROMPT, "max_tokens": 0}, "max_tokens", "max_tokens: Input should be greater than or equal to 1"),
    (COMPLETIONS, {**PROMPT, "max_tokens": "8"}, "max_tokens", "max_tokens: Input should be a valid integer"),
    (COMPLETIONS, {**PROMPT, "max_tokens": -(10**300)}, "max_tokens", "should be greater than or equal to 1"),
    (COMPLETIONS, {**PROMPT, "temperature": -1}, "temperature", "temperature: Input should be greater than or equal"),
    (COMPLETIONS, {**PROMPT, "top_p": 1.5}, "top_p", "top_p: Input should be less than or equal to 1"),
    (COMPLETIONS, {**PROMPT, "seed": 1 << 63}, "seed", "seed: Input should be less than or equal to 9223372"),
    (COMPLETIONS, {**PROMPT, "stream": "yes"}, "stream", "stream: Input should be a valid boolean"),
    (COMPLETIONS, {**PROMPT, "write": "some"}, "write", "write: Input should be 'always', 'gated' or 'never'"),
    (COMPLETIONS, {**PROMPT, "memory": 5}, "memory", "memory: Input should be a valid string"),
    (COMPLETIONS, {**PROMPT, "stream_options": {"include_usage": 3}}, "stream_options.include_usage",
     "stream_options.include_usage: Input should be a valid boolean"),
    (COMPLETIONS, {**PROMPT, "n": 2}, "n", "n: not supported, leave it out"),
    (COMPLETIONS, {**PROMPT, "n": True}, "n", "n: not supported"),
    (COMPLETIONS, {**PROMPT, "logprobs": 1}, "logprobs", "logprobs: not supported"),
    (COMPLETIONS, {**PROMPT, "stop": [1]}, "stop[0]", "stop[0]: Input should be a valid string"),
    (COMPLETIONS, {**PROMPT, "stop": ["a"] * 5}, "stop", "stop: List should have at most 4 items"),
    (COMPLETIONS, {**PROMPT, "stream_options": {"include_usge": True}}, "stream_options.include_usge",
     "did you mean include_usage?"),
    (COMPLETIONS, {**PROMPT, "user": "a b", "memory": "m"}, "user", "user: the name is not"),
    (COMPLETIONS, [PROMPT], None, "the body is no object of JSON"),
    (CHAT, said(HELLO, modalities=["text", "audio"]), "modalities", "modalities: not supported"),
    (CHAT, said(HELLO, audio={"voice": "x", "format": "wav"}), "audio", "audio: not supported"),
    (CHAT, said(HELLO, tools=[TOOL]), "tools", "tools: not supported"),
    (CHAT, said(HELLO, tool_choice="required"), "tool_choice", "tool_choice: not supported"),
    (CHAT, said(HELLO, response_format={"type": "json_object"}), "response_format", "response_format: not supported"),
    (CHAT, said(HELLO, logprobs=True, top_logprobs=2), "logprobs", "logprobs: not supported"),
    (CHAT, said(HELLO, reasoning_effort="high"), "reasoning_effort", "reasoning_effort: not supported"),
    (CHAT, said(HELLO, web_search_options={}), "web_search_options", "web_search_options: not supported"),
    (CHAT, said(), "messages", "messages: List should have at least 1 item"),
    (CHAT, said("hi"), "messages[0]", "messages[0]: expected an object"),
    (CHAT, said({}), "messages[0].role", "messages[0].role: Field required"),
    (CHAT, said(HELLO, {"role": "tool", "content": "x"}), "messages[1].role", "Input should be 'system', 'developer',"),
    (CHAT, said({**HELLO, "tool_call_id": "1"}), "messages[0].tool_call_id", "not supported"),
    (CHAT, said({**HELLO, "role": "bot"}), "messages[0].role", "messages[0].role: Input should be 'system'"),
    (CHAT, said({**HELLO, "contnet": "x"}), "messages[0].contnet", "did you mean content?"),
    (CHAT, said({**HELLO, "tool_calls": [{"id": "1"}]}), "messages[0].tool_calls", "not supported"),
    (CHAT, said({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}),
     "messages[0].content[1].image_url", "not supported"),
    (CHAT, said({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text", "Field required"),
    (CHAT, said({"role": "user", "content": [{"type": {}, "text": "x"}]}), "messages[0].content[0].type", "be 'text'"),
    (CHAT, said({"role": "user", "content": 5}), "messages[0].content", "Input should be a valid list"),
    (FORK, {"to": "b", "too": "c"}, "too", "did you mean to?"),
    ("/v1/completions?memory=notes", PROMPT, "memory", "memory: no field of this request"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "body", "param", "sentence"), WRONG)
def test_what_would_not_be_heeded_is_refused_by_name(client, url, body, param, sentence):
    error = client.error("POST", url, 400, json=body)
    assert error["param"] == param
    assert sentence in error["message"]
    assert "\n" not in error["message"]


def test_what_official_clients_send_that_asks_for_nothing_is_taken(client):
    nothing = {
        "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True, "prediction": None,
        "prompt_cache_key": "k", "safety_identifier": "s", "modalities": ["text"], "tool_choice": "none", "tools": [],
        "logprobs": False, "top_logprobs": 0, "reasoning_effort": "none", "verbosity": "medium", "audio": None,
        "stream_options": {"include_usage": False, "include_obfuscation": False}, "logit_bias": {}, "n": 1,
    }  # fmt: skip
    earlier = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    answers = [
        client.request("POST", CHAT, json=said(earlier, HELLO, **more)).json()["choices"][0]["message"]["content"]
        for more in (nothing, {})
    ]
    assert answers[0] == answers[1] == client.text("assistant: x\nuser: hello\nassistant:")


def test_a_misspelt_name_in_an_address_lists_nobody_elses_memories(client):
    error = client.error("GET", "/v1/memories?usr=ann", 400)
    assert error == error | {"param": "usr", "message": "usr: no field of this request, did you mean user?"}


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("0", "limit: Input should be greater than or equal to 1"),
        ("1001", "limit: Input should be less than or equal to 1000"),
        ("many", "limit: Input should be a valid integer, unable to parse string as an integer"),
        ("9" * 5000, "limit: Unable to parse input string as an integer, exceeded maximum size"),
    ],
)
def test_a_wrong_value_in_an_address_is_told_like_one_in_a_body(client, limit, sentence):
    assert client.error("GET", f"/v1/memories?limit={limit}", 400)["message"] == sentence


def test_every_field_is_supported_or_refused_or_ignored():
    """What the official client can send is known here by name, so that nothing falls through."""
    openai = pytest.importorskip("openai", reason="the OpenAI client is not installed")
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    from titans.serving.requests import ChatRequest, CompletionRequest

    assert openai.__version__
    cases = (
        (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
        (chat_create_params.CompletionCreateParamsBase, ChatRequest),
    )
    for sent, taken in cases:
        known = set(taken.model_fields) | set(requests.UNSUPPORTED) | requests.IGNORED | {"stream"}
        assert set(sent.__annotations__) - known == set()


def test_a_long_name_is_not_echoed_in_full(client):
    for url, body in ((COMPLETIONS, {**PROMPT, "x" * 10_000: 1}), (f"{COMPLETIONS}?{'x' * 10_000}=1", PROMPT)):
        assert len(client.error("POST", url, 400, json=body)["message"]) < 200


def test_the_schema_tells_of_keys(make_client):
    told = make_client(keys={"key-of-alice-0123456": "alice"}).request("GET", "/openapi.json").json()
    assert told["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    asked = {path for path, route in told["paths"].items() for one in route.values() if "security" in one}
    assert asked == {path for path in told["paths"] if path.startswith("/v1/")} != set()
