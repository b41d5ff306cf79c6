"""Whatever a client sends, the server answers as `/openapi.json` says, and does not fail."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

pytestmark = pytest.mark.slow
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    server = start_server(folder / "memories", "--max-new-tokens", 2, "--max-body", 20_000, "--max-state", 200_000)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_one_that_the_schema_tells(server, schema, mode):
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # there is nothing that could be wrong

        @settings(max_examples=6, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case):
            response = case.call()
            refused_for_more = response.status_code in (412, 413)  # a version, a size: whatever else is wrong
            case.validate_response(response, checks=CHECKS[:-1] if refused_for_more else CHECKS)

        answered()
    log = server.log.read_text()
    assert '"route": "/v1/completions", "status": 200' in log or mode is GenerationMode.NEGATIVE
    assert '"level": "error"' not in log
    assert "Traceback" not in log


def test_what_is_answered_by_name_is_in_the_schema(server, schema):
    """Answers that the fuzz rarely meets: whole, streamed, kept, traced, and each kind of refusal."""
    prompt = {"model": "tiny", "prompt": "hello", "temperature": 0}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    memory = {"user": "default", "memory": "kept"}
    sent = [
        ("POST", "/v1/completions", {}, {**prompt, "memory": "kept", "trace": True}, 200),
        ("POST", "/v1/completions", {}, {**prompt, "stream": True}, 200),
        ("POST", "/v1/completions", {}, {**prompt, "model": "other"}, 404),
        ("POST", "/v1/completions", {}, {**prompt, "n": 2}, 400),
        ("POST", "/v1/chat/completions", {}, {**chat, "stream": True, "trace": True}, 200),
        ("POST", "/v1/chat/completions", {}, chat, 200),
        ("GET", "/v1/memories", {}, None, 200),
        ("GET", "/v1/memories/{user}/{memory}", memory, None, 200),
        ("GET", "/v1/memories/{user}/{memory}/export", memory, None, 200),
        ("POST", "/v1/memories/{user}/{memory}/fork", memory, {"to": "branch"}, 200),
        ("POST", "/v1/memories/{user}/{memory}/fork", memory, {"to": "branch"}, 409),
        ("POST", "/v1/memories/{user}/{memory}/reset", memory, None, 200),
        ("DELETE", "/v1/memories/{user}/{memory}", memory, None, 200),
        ("DELETE", "/v1/memories/{user}/{memory}", memory, None, 404),
        ("GET", "/v1/models", {}, None, 200),
        ("GET", "/v1/models/{model}", {"model": "tiny"}, None, 200),
        ("GET", "/v1/models/{model}", {"model": "other"}, None, 404),
        ("GET", "/healthz", {}, None, 200),
        ("GET", "/readyz", {}, None, 200),
        ("GET", "/metrics", {}, None, 200),
    ]  # fmt: skip
    for method, path, parameters, body, status in sent:
        given_body = {} if body is None else {"body": body, "media_type": "application/json"}
        case = schema[path][method].Case(path_parameters=parameters, **given_body)
        response = case.call_and_validate(checks=CHECKS)
        assert response.status_code == status, (method, path, response.text)
    data = server.http.get("/v1/memories").json()["data"]
    file = server.http.get(f"/v1/memories/default/{data[0]['memory']}/export").content
    case = schema["/v1/memories/{user}/{memory}/import"]["PUT"].Case(
        path_parameters=memory, body=file, media_type="application/octet-stream"
    )
    assert case.call_and_validate(checks=CHECKS).status_code == 200


def test_a_method_that_a_path_does_not_take_is_told_those_that_it_does(server):
    paths = server.http.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        address = path.format(user="ann", memory="notes", model="tiny")
        allowed = {method.upper() for method in operations}
        for method in set(METHODS) - allowed:
            answer = server.http.request(method, address)
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allowed
            assert answer.json()["error"]["code"] == "method_not_allowed"
    assert server.http.post("/static/app.js").headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/static/app.js"])
def test_head_is_answered_as_get_without_the_body(server, path):
    told, whole = server.http.head(path), server.http.get(path)
    assert told.status_code == whole.status_code == 200
    assert told.content == b""
    assert told.headers["content-type"] == whole.headers["content-type"]
    assert int(told.headers["content-length"]) > 0
    assert "HEAD" in server.http.post(path).headers["allow"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/v1/nothing", "/v1/models/a/b"])
def test_what_is_not_there_is_named(server, path):
    error = server.http.post(path).json()["error"]
    assert f"there is no '{path}' here" in error["message"]
    assert error["code"] == "unknown_url"
