"""The schema at `/openapi.json`: every status, content type and header that a request can be answered with."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from titans.serving.responses import Error

_RETRY = {"Retry-After": {"description": "Seconds after which to try again.", "schema": {"type": "integer"}}}
_ERRORS: dict[int, dict[str, Any]] = {
    400: {"description": "A field is wrong, missing or not supported; the message and `param` name it."},
    401: {"description": "The API key is missing or unknown."},
    403: {"description": "Without API keys: a page of another site, or another machine's name for this one."},
    404: {"description": "There is no such model or memory."},
    408: {"description": "The body came too slowly."},
    409: {"description": "Somebody else wrote the memory meanwhile, or it exists already: try again."},
    412: {"description": "The memory is not at the version that `If-Match` names."},
    413: {"description": "The body or the memory is too large, or the tenant has too many memories."},
    422: {"description": "The memory belongs to another model, or an `Idempotency-Key` came with another request."},
    429: {"description": "Too many requests at once.", "headers": _RETRY},
    500: {"description": "The server failed, or the stored memory is damaged: its log says more."},
    503: {"description": "The server is stopping, or its store does not work.", "headers": _RETRY},
    507: {"description": "The store is full."},
}
ANY = (403, 500)  # what every request may get
API = (400, 401, *ANY, 408, 413, 422, 429, 503)  # and one to the API; for 422, the framework has a form of its own
KEPT = (*API, 404, 409, 412, 507)  # and one that has to do with memories


def documented(
    statuses: tuple[int, ...], model: type[BaseModel] | None = None, content: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Tell what a route answers.

    Args:
        statuses: of its errors.
        model: of its answer in JSON; None where it is something else.
        content: the schema of an answer in another form, by its content type.

    Returns:
        The `responses` of the route.
    """
    told: dict[int | str, dict[str, Any]] = {status: {**_ERRORS[status], "model": Error} for status in statuses}
    done: dict[str, Any] = {"description": "Done."}
    if model is not None:
        done["model"] = model
    if content is not None:
        done["content"] = {name: {"schema": schema} for name, schema in content.items()}
    return told | {200: done}


def name_model(app: FastAPI, model_id: str) -> None:
    """Tell in the schema of an application which model alone a request can name."""
    openapi = app.openapi

    def schema() -> dict[str, Any]:
        told = openapi()
        for request in ("CompletionRequest", "ChatRequest"):
            told["components"]["schemas"][request]["properties"]["model"]["enum"] = [model_id]
        return told

    app.openapi = schema  # type: ignore[method-assign]
