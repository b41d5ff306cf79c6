"""Whatever a client sends, the server does not fail: no status of 500 and above, nothing unexpected in its log."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    server = start_server(folder / "memories", "--max-new-tokens", 2, "--max-body", 20_000, "--max-state", 200_000)
    yield server
    server.stop()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_breaks_the_server(server, mode):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # there is nothing that could be wrong

        @settings(max_examples=6, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case):
            response = case.call()
            assert response.status_code < 500, response.text

        answered()
    log = server.log.read_text()
    assert '"route": "/v1/completions"' in log
    assert '"level": "error"' not in log
    assert "Traceback" not in log
