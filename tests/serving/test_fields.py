"""What a request holds that this server does not do, or that is misspelt, is refused in one sentence that names it."""

import pytest

from tests.serving.conftest import ALWAYS, GREEDY, Client
from titans.persistence import MemoryStore
from titans.serving import fields
from titans.serving.app import Limits, create_app
from titans.serving.engine import Engine
from titans.serving.errors import ApiError
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
    (COMPLETIONS, {**PROMPT, "memroy": "notes"}, "memroy", "'memroy' is no field of this request: did you mean mem"),
    (COMPLETIONS, {**PROMPT, "max_completion_tokens": 5}, "max_completion_tokens", "did you mean max_tokens?"),
    (COMPLETIONS, {**PROMPT, "top_k": 5}, "top_k", "'top_k' is no field of this request"),
    (COMPLETIONS, {**PROMPT, "messages": [HELLO]}, "messages", "'messages' is no field"),
    (COMPLETIONS, {**PROMPT, "prompt": ["a", "b"]}, "prompt", "prompt holds 2 prompts: send one"),
    (COMPLETIONS, {**PROMPT, "prompt": [[1], [2], [3]]}, "prompt", "prompt holds 3 prompts"),
    (COMPLETIONS, {**PROMPT, "prompt": [1, "a"]}, "prompt", "prompt[1] is a text: expected a token"),
    (COMPLETIONS, {**PROMPT, "prompt": [True]}, "prompt", "prompt[0] is true or false: expected a token"),
    (COMPLETIONS, {**PROMPT, "prompt": [-1] * 100_000}, "prompt", "prompt[0] is -1: expected a token"),
    (COMPLETIONS, {**PROMPT, "prompt": {}}, "prompt", "prompt is an object: expected a text"),
    (COMPLETIONS, GREEDY, "prompt", "prompt is missing"),
    (COMPLETIONS, {**PROMPT, "max_tokens": 0}, "max_tokens", "max_tokens is 0: expected a whole number of at least 1"),
    (COMPLETIONS, {**PROMPT, "max_tokens": "8"}, "max_tokens", "max_tokens is a text: expected a whole number"),
    (COMPLETIONS, {**PROMPT, "max_tokens": -(10**300)}, "max_tokens", "max_tokens is a number: expected a whole"),
    (COMPLETIONS, {**PROMPT, "temperature": -1}, "temperature", "temperature is -1: expected a number of at least 0"),
    (COMPLETIONS, {**PROMPT, "top_p": 1.5}, "top_p", "top_p is 1.5: expected a number of at most 1"),
    (COMPLETIONS, {**PROMPT, "seed": 1 << 63}, "seed", ": expected a whole number of at most 9,223,372,"),
    (COMPLETIONS, {**PROMPT, "stream": "yes"}, "stream", "stream is a text: expected true or false"),
    (COMPLETIONS, {**PROMPT, "write": "some"}, "write", "write is 'some': expected 'always', 'gated' or 'never'"),
    (COMPLETIONS, {**PROMPT, "memory": 5}, "memory", "memory is a number: expected a text"),
    (COMPLETIONS, {**GREEDY}, "prompt", "prompt is missing"),
    ("/v1/completions", {**PROMPT, "stream_options": {"include_usage": 3}}, "stream_options.include_usage",
     "stream_options.include_usage is a number: expected true or false"),
    (COMPLETIONS, {**PROMPT, "n": 2}, "n", "n is not supported: leave it out"),
    (COMPLETIONS, {**PROMPT, "n": True}, "n", "n is not supported"),
    (COMPLETIONS, {**PROMPT, "logprobs": 1}, "logprobs", "logprobs is not supported"),
    (COMPLETIONS, {**PROMPT, "stop": [1]}, "stop", "stop[0] is a number: expected a text"),
    (COMPLETIONS, {**PROMPT, "stop": ["a"] * 5}, "stop", "stop is a list of 5: expected up to 4"),
    (COMPLETIONS, {**PROMPT, "stream_options": {"include_usge": True}}, "stream_options.include_usge",
     "did you mean include_usage?"),
    (COMPLETIONS, {**PROMPT, "user": "a b", "memory": "m"}, "user", "user: the name is not"),
    (COMPLETIONS, [PROMPT], None, "the body is no JSON object"),
    (CHAT, said(HELLO, modalities=["text", "audio"]), "modalities", "modalities is not supported"),
    (CHAT, said(HELLO, audio={"voice": "x", "format": "wav"}), "audio", "audio is not supported"),
    (CHAT, said(HELLO, tools=[TOOL]), "tools", "tools is not supported"),
    (CHAT, said(HELLO, tool_choice="required"), "tool_choice", "tool_choice is not supported"),
    (CHAT, said(HELLO, response_format={"type": "json_object"}), "response_format", "response_format is not supported"),
    (CHAT, said(HELLO, logprobs=True, top_logprobs=2), "logprobs", "logprobs is not supported"),
    (CHAT, said(HELLO, reasoning_effort="high"), "reasoning_effort", "reasoning_effort is not supported"),
    (CHAT, said(HELLO, web_search_options={}), "web_search_options", "web_search_options is not supported"),
    (CHAT, said(), "messages", "messages is empty: expected a list of at least one"),
    (CHAT, said("hi"), "messages[0]", "messages[0] is a text: expected an object"),
    (CHAT, said({}), "messages[0].role", "messages[0].role is missing: expected system"),
    (CHAT, said(HELLO, {"role": "tool", "content": "x"}), "messages[1].role", "and tools are not supported"),
    (CHAT, said({"role": "tool", "content": "x", "tool_call_id": "1"}), "messages[0].role", "tools are not supported"),
    (CHAT, said({**HELLO, "tool_call_id": "1"}), "messages[0].tool_call_id", "is not supported"),
    (CHAT, said({**HELLO, "role": "bot"}), "messages[0].role", "messages[0].role is unknown"),
    (CHAT, said({**HELLO, "contnet": "x"}), "messages[0].contnet", "did you mean content?"),
    (CHAT, said({**HELLO, "tool_calls": [{"id": "1"}]}), "messages[0].tool_calls", "is not supported"),
    (CHAT, said({"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}),
     "messages[0].content[1]", "is of type 'image_url', which is not supported: this model reads text only"),
    (CHAT, said({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text", "is missing"),
    (CHAT, said({"role": "user", "content": [{"type": {}, "text": "x"}]}), "messages[0].content[0].type", "an object"),
    (CHAT, said({"role": "user", "content": 5}), "messages[0].content", "is a number: expected a text"),
    (FORK, {"to": "b", "too": "c"}, "too", "did you mean to?"),
    ("/v1/completions?memory=notes", PROMPT, "memory", "'memory' is no field of this request"),
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
    assert error == error | {"param": "usr", "message": "'usr' is no field of this request: did you mean user?"}


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("0", "limit is '0': expected a whole number of at least 1"),
        ("1001", "limit is '1001': expected a whole number of at most 1,000"),
        ("many", "limit is 'many': expected a whole number"),
        ("9" * 5000, "limit is a text: expected a whole number"),
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
        known = set(taken.model_fields) | set(fields.UNSUPPORTED) | fields.IGNORED | {"stream"}
        assert set(sent.__annotations__) - known == set()


def test_a_long_name_is_not_echoed_in_full():
    with pytest.raises(ApiError) as refused:
        fields.check_fields({"x" * 10_000: 1}, ("memory",))
    assert len(refused.value.message) < 200


def test_the_schema_tells_of_keys(make_client):
    told = make_client(keys={"key-of-alice-0123456": "alice"}).request("GET", "/openapi.json").json()
    assert told["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    asked = {path for path, route in told["paths"].items() for one in route.values() if "security" in one}
    assert asked == {path for path in told["paths"] if path.startswith("/v1/")} != set()
