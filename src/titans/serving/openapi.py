"""The schema at `/openapi.json`: every status, content type and header that a request can be answered with."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
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
API = (400, 401, *ANY, 408, 413, 429, 503)  # and one to the API
KEPT = (*API, 404, 409, 412, 422, 507)  # and one that has to do with memories

Responses = dict[int | str, dict[str, Any]]


def answers(
    statuses: tuple[int, ...], model: type[BaseModel] | None = None, content: dict[str, Any] | None = None
) -> Responses:
    """Tell what a route answers.

    Args:
        statuses: of its errors.
        model: of its answer in JSON; None where it is something else.
        content: the schema of an answer in another form, by its content type.

    Returns:
        The `responses` of the route.
    """
    told: Responses = {status: {**_ERRORS[status], "model": Error} for status in statuses}
    done: dict[str, Any] = {"description": "Done."}
    if model is not None:
        done["model"] = model
    if content is not None:
        done["content"] = {name: {"schema": schema} for name, schema in content.items()}
    return told | {200: done}


def describe(app: FastAPI, model_id: str, has_keys: bool) -> None:
    """Let an application's schema be what it answers: the framework adds an error of its own, which it never gives.

    Args:
        app: the application.
        model_id: of the one model that a request can name.
        has_keys: whether the API asks for a key.
    """

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            told = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _without_framework(told)
            for request in ("CompletionRequest", "ChatRequest"):
                told["components"]["schemas"][request]["properties"]["model"]["enum"] = [model_id]
            if has_keys:
                _add_keys(app.openapi_schema)
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]


def _without_framework(schema: dict[str, Any]) -> dict[str, Any]:
    for route in schema["paths"].values():
        for operation in route.values():
            if operation["responses"].get("422", {}).get("description") == "Validation Error":
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
    return schema


def _add_keys(schema: dict[str, Any]) -> None:
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, route in schema["paths"].items():
        if path.startswith("/v1/"):
            for operation in route.values():
                operation["security"] = [{"key": []}]
