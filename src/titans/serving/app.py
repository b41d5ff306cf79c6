"""The application: routes, limits and errors put together."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from titans.errors import TitansError
from titans.serving import completions, memories
from titans.serving.access import Access
from titans.serving.errors import ApiError, as_api_error
from titans.serving.metrics import Metrics
from titans.serving.middleware import BodyLimit, Observed
from titans.serving.service import Service

logger = logging.getLogger(__name__)
PAGE = files("titans.serving") / "page"


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Args:
        body: bytes of a body. Default 32 MiB.
        prompt_tokens: tokens of a prompt. Default 131,072.
        new_tokens: tokens of an answer; a request for more gets so many. Default 4,096.
    """

    body: int = 32 << 20
    prompt_tokens: int = 1 << 17
    new_tokens: int = 4096


def create_app(service: Service, model_id: str, access: Access, metrics: Metrics, limits: Limits) -> FastAPI:
    """Make the application.

    Args:
        service: runs the requests.
        model_id: the name that clients know the model by.
        access: who may use it.
        metrics: where to count.
        limits: of a request.

    Returns:
        An ASGI application; its shutdown finishes and saves what runs.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await service.drain()

    # The usual documentation pages load scripts from elsewhere; the schema is at /openapi.json.
    app = FastAPI(title="Titans", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service, app.state.model_id, app.state.limits, app.state.metrics = service, model_id, limits, metrics

    def known(request: Request) -> None:
        request.state.tenant = access.tenant(request)

    for router in (completions.router, memories.router, _models()):
        app.include_router(router, dependencies=[Depends(known)])
    _add_open_routes(app)
    _add_errors(app)
    if access.tenants is None:  # a page of another site must not reach it under a name that leads here
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"])
    app.add_middleware(BodyLimit, limit=limits.body)
    app.add_middleware(Observed, metrics=metrics)
    return app


def _models() -> Any:
    from fastapi import APIRouter

    router = APIRouter(prefix="/v1/models")

    def described(request: Request) -> dict[str, Any]:
        return {"id": request.app.state.model_id, "object": "model", "created": 0, "owned_by": "titans"}

    @router.get("")
    async def list_models(request: Request) -> dict[str, Any]:
        """List the models: one."""
        return {"object": "list", "data": [described(request)]}

    @router.get("/{model}")
    async def get_model(model: str, request: Request) -> dict[str, Any]:
        """Describe the model."""
        if model != request.app.state.model_id:
            raise ApiError(404, f'there is no model "{model}"', "model_not_found", "model")
        return described(request)

    return router


def _add_open_routes(app: FastAPI) -> None:
    """Add what needs no key: the page, its parts, health and metrics."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(str(PAGE / "index.html"))

    @app.get("/healthz")
    async def health(request: Request) -> dict[str, str]:
        """Whether requests are taken."""
        if request.app.state.service.draining:
            raise ApiError(503, "the server is stopping", "stopping")
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Numbers for Prometheus."""
        response: Response = request.app.state.metrics.response(*request.app.state.service.engine.load)
        return response

    app.mount("/static", StaticFiles(directory=str(PAGE)))


def _add_errors(app: FastAPI) -> None:
    """Tell all errors in OpenAI's shape."""

    @app.exception_handler(ApiError)
    @app.exception_handler(TitansError)
    @app.exception_handler(Exception)
    async def told(request: Request, error: Exception) -> Response:
        return as_api_error(error).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "body"
        return ApiError(400, f"{where}: {first['msg']}", param=where).response()

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        answer = ApiError(error.status_code, str(error.detail)).response()
        answer.headers.update(error.headers or {})
        return answer
