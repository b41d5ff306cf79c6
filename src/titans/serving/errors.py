"""Errors as the OpenAI API tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from titans.error_text import first_line
from titans.errors import TitansError
from titans.persistence import (
    ConflictError,
    FingerprintError,
    InvalidNameError,
    LimitError,
    StoreError,
    UnknownMemoryError,
)

RETRY_AFTER = 1  # seconds
_STATUS: tuple[tuple[type[TitansError], int, str], ...] = (
    (UnknownMemoryError, 404, "memory_not_found"),
    (ConflictError, 409, "memory_conflict"),
    (InvalidNameError, 400, "invalid_name"),
    (LimitError, 413, "memory_limit"),
    (FingerprintError, 422, "memory_of_another_model"),  # 409 is tried again
)


class ApiError(Exception):
    """What a client is told.

    Args:
        status: the HTTP status.
        message: one sentence.
        code: a word for programs; OpenAI's where it has one.
        param: the field of the request that is wrong.
    """

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def body(self) -> dict[str, dict[str, str | None]]:
        """Return the JSON that clients of the OpenAI API expect."""
        return {"error": {"message": self.message, "type": self._type(), "param": self.param, "code": self.code}}

    def _type(self) -> str:
        if self.status in (401, 403):
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def response(self) -> JSONResponse:
        """Return the whole answer, with when to try again where that helps."""
        headers = {"Retry-After": str(RETRY_AFTER)} if self.status in (429, 503) else {}
        return JSONResponse(self.body(), self.status, headers)


def validation_error(found: Mapping[str, Any]) -> ApiError:
    """Tell one of pydantic's errors, without what was sent, in a sentence that names the field."""
    if found["type"] == "json_invalid" or (found["loc"] == ("body",) and found["type"] != "field"):
        return ApiError(400, "the body is no object of JSON, with Content-Type: application/json")
    path = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"][1:]]
    path += [f".{name[:100]}" for name in [found.get("ctx", {}).get("field")] if name]
    where = "".join(part for part in path if not part.startswith(".{")).removeprefix(".")  # braces: a union's branch
    return ApiError(400, f"{where}: {found['msg'].removeprefix('Value error, ')}", param=where)


def as_api_error(error: Exception) -> ApiError:
    """Tell any error as the API does: what a user can correct by its sentence, others without detail."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in _STATUS:
        if isinstance(error, kind):
            return ApiError(status, str(error), code)
    if isinstance(error, StoreError):
        return ApiError(507 if error.kind == "full" else 503, str(error), "store_failed")
    if isinstance(error, TitansError):
        return ApiError(400, first_line(error))
    return ApiError(500, "the server failed: its log says why", "internal_error")
