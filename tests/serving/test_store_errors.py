"""What clients are told of the store: who can help, and whether to try again."""

import pytest

from titans.persistence import StoreError
from titans.serving.errors import as_api_error


@pytest.mark.parametrize(("kind", "status"), [("full", 507), ("read-only", 503), ("gone", 503), ("failed", 503)])
def test_a_store_that_fails_is_no_mistake_of_the_client(kind, status):
    error = as_api_error(StoreError(kind, "as the system says"))
    assert (error.status, error.code) == (status, "store_failed")
    assert "(as the system says): " in error.message
