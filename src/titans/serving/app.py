"""The application: routes, limits and errors put together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Mount

from titans.errors import TitansError
from titans.serving import completions, memories
from titans.serving.access import Access, Keys
from titans.serving.body_limits import BodyLimits
from titans.serving.errors import ApiError, as_api_error, validation_error
from titans.serving.idempotency import IdempotentRequests
from titans.serving.metrics import Metrics
from titans.serving.middleware import AccessLog
from titans.serving.openapi import ANY, API, documented, name_model
from titans.serving.requests import check_query
from titans.serving.responses import Health, Model, Models, Ready
from titans.serving.service import Service

PAGE = files("titans.serving") / "page"
models = APIRouter(prefix="/v1/models")
plain = APIRouter()  # needs no key; is asked with HEAD, too, by those who watch servers, and uvicorn drops the body


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Args:
        body: bytes of a body.
        state: bytes of a state file.
        prompt_tokens: tokens of a prompt.
        new_tokens: tokens of an answer; a request for more gets so many.
    """

    body: int = 4 << 20
    state: int = 256 << 20
    prompt_tokens: int = 1 << 17
    new_tokens: int = 4096

    @property
    def values(self) -> int:
        """JSON values of a body: a prompt may be given as tokens, and one a little too long is told so."""
        return 2 * self.prompt_tokens + 4096


def create_app(service: Service, model_id: str, keys: Keys | None, metrics: Metrics, limits: Limits) -> FastAPI:
    """Make the application.

    Args:
        service: runs the requests.
        model_id: the name that clients know the model by.
        keys: the API keys; None for none.
        metrics: where to count.
        limits: of a request.

    Returns:
        An ASGI application; its shutdown finishes and saves what runs.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.drain()

    # The usual documentation pages load scripts from elsewhere; the schema is at /openapi.json.
    app = FastAPI(title="Titans", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service, app.state.model_id, app.state.limits, app.state.metrics = service, model_id, limits, metrics
    app.state.retries = IdempotentRequests()
    key = [Security(HTTPBearer(scheme_name="key", auto_error=False))] if keys else []  # for the schema: `Access` looks
    for router in (completions.router, memories.router, models):
        app.include_router(router, dependencies=[Depends(check_query), *key])
    app.include_router(plain)
    app.mount("/static", StaticFiles(directory=str(PAGE)))
    name_model(app, model_id)
    _add_errors(app)
    app.add_middleware(
        BodyLimits, limit=limits.body, imports=limits.state, values=limits.values, most=service.tenant_limit.most
    )
    app.add_middleware(Access, keys=keys)
    app.add_middleware(AccessLog, metrics=metrics)  # the last is the first to see a request
    return app


def _described(request: Request) -> dict[str, Any]:
    template = request.app.state.service.engine.tokenizer.chat_template is not None
    named = {"id": request.app.state.model_id, "object": "model", "created": 0, "owned_by": "titans"}
    return {**named, "chat_template": template}


@models.get("", response_model=None, responses=documented(API, Models))
async def list_models(request: Request) -> dict[str, Any]:
    """List the models: one."""
    return {"object": "list", "data": [_described(request)]}


@models.get("/{model}", response_model=None, responses=documented((*API, 404), Model))
async def get_model(model: str, request: Request) -> dict[str, Any]:
    """Describe the model."""
    if model != request.app.state.model_id:
        raise ApiError(404, f'there is no model "{model}"', "model_not_found", "model")
    return _described(request)


@plain.head("/", include_in_schema=False)
@plain.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Show the page."""
    return FileResponse(str(PAGE / "index.html"))


@plain.head("/healthz", include_in_schema=False)
@plain.get("/healthz", response_model=None, responses=documented((*ANY, 503), Health))
async def health(request: Request) -> dict[str, Any]:
    """Tell whether requests are taken, and what the store held at the start, once it is counted."""
    service: Service = request.app.state.service
    if service.draining:
        raise ApiError(503, "the server is stopping", "stopping")
    if not service.engine.alive:
        raise ApiError(500, "the engine has stopped: start the server again", "engine_stopped")
    counted = service.counts and dataclasses.asdict(service.counts)
    return {"status": "ok", "memories_at_start": counted}


@plain.head("/readyz", include_in_schema=False)
@plain.get("/readyz", response_model=None, responses=documented((*ANY, 503, 507), Ready))
async def ready(request: Request) -> dict[str, str]:
    """Tell whether requests are taken and their memories can be saved: a small file is written to the store."""
    await request.app.state.service.ready()
    return {"status": "ok"}


@plain.head("/metrics", include_in_schema=False)
@plain.get("/metrics", response_class=Response, responses=documented(ANY, content={"text/plain": {"type": "string"}}))
async def metrics(request: Request) -> Response:
    """Return numbers for Prometheus."""
    response: Response = request.app.state.metrics.response(*request.app.state.service.engine.load)
    return response


def _methods(request: Request) -> list[str]:
    """Return the methods that an address takes: each route knows only its own."""
    routes = [route for route in request.app.routes if not isinstance(route, Mount)]
    found = [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return found or ["GET", "HEAD"]  # of files


def _add_errors(app: FastAPI) -> None:
    """Tell all errors in OpenAI's shape."""

    @app.exception_handler(ApiError)
    @app.exception_handler(TitansError)
    async def told(request: Request, error: Exception) -> Response:
        return as_api_error(error).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return validation_error(error.errors()[0]).response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        path, method = request.url.path[:100], request.method[:20]
        headers = dict(error.headers or {})
        if error.status_code == 404:
            told = ApiError(404, f"there is no {path!r} here: /openapi.json lists what there is", "unknown_url")
        elif error.status_code == 405:
            allowed = _methods(request)
            headers["Allow"] = ", ".join(allowed)
            told = ApiError(405, f"{path!r} takes no {method}: it takes {' or '.join(allowed)}", "method_not_allowed")
        else:
            told = ApiError(error.status_code, str(error.detail))
        answer = told.response()
        answer.headers.update(headers)
        return answer
