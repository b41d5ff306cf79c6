"""The endpoints of the memories that are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from titans.persistence import MemoryStore, UnknownMemoryError
from titans.serving.completions import DEFAULT_USER, memory_name
from titans.serving.idempotency import Expected, check_version
from titans.serving.openapi import API, KEPT, documented
from titans.serving.requests import ForkRequest, Name
from titans.serving.responses import SEPARATOR, Deleted, Memories, Memory, describe
from titans.serving.service import Service

router = APIRouter(prefix="/v1/memories")
_FILE, _BYTES = "application/octet-stream", {"type": "string", "format": "binary"}
PART_BYTES = 1 << 20  # bytes of a file that are sent at once
User = Annotated[Name, Path()]
MemoryName = Annotated[Name, Path()]


@router.get("", response_model=None, responses=documented((*API, 507), Memories))
async def list_memories(
    request: Request,
    user: Annotated[Name, Query()] = DEFAULT_USER,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[Name | None, Query()] = None,
) -> dict[str, Any]:
    """List a user's memories by name, from the one after `after`."""
    service, tenant = _served(request)
    prefix = f"{user}{SEPARATOR}"
    with service.slot(tenant):
        found = await service.on_disk(
            service.store.list, tenant, limit=limit + 1, after=prefix + (after or ""), prefix=prefix
        )
    return {"object": "list", "data": [describe(info) for info in found[:limit]], "has_more": len(found) > limit}


@router.get("/{user}/{memory}", response_model=None, responses=documented(KEPT, Memory))
async def get_memory(user: User, memory: MemoryName, request: Request) -> dict[str, Any]:
    """Describe a memory."""
    service, tenant = _served(request)
    with service.slot(tenant):
        info = await service.on_kept(service.store.info, tenant, memory_name(user, memory))
    if info is None:
        raise UnknownMemoryError(f'there is no memory "{memory}" of "{user}"')
    return describe(info)


@router.delete("/{user}/{memory}", response_model=None, responses=documented(KEPT, Deleted))
async def delete_memory(user: User, memory: MemoryName, request: Request, expected: Expected = None) -> dict[str, Any]:
    """Delete a memory."""
    await _alone(request, user, memory, expected, MemoryStore.delete)
    return {"id": memory_name(user, memory), "object": "memory.deleted", "deleted": True}


@router.post("/{user}/{memory}/fork", response_model=None, responses=documented(KEPT, Memory))
async def fork_memory(
    user: User, memory: MemoryName, body: ForkRequest, request: Request, expected: Expected = None
) -> dict[str, Any]:
    """Branch a memory: a new one that starts as this one is."""
    to = memory_name(user, body.to)
    return describe(await _alone(request, user, memory, expected, MemoryStore.fork, to, also=to))


@router.post("/{user}/{memory}/reset", response_model=None, responses=documented(KEPT, Memory))
async def reset_memory(user: User, memory: MemoryName, request: Request, expected: Expected = None) -> dict[str, Any]:
    """Let a memory start anew."""
    return describe(await _alone(request, user, memory, expected, MemoryStore.reset, _served(request)[0].fresh))


@router.get("/{user}/{memory}/export", response_class=Response, responses=documented(KEPT, content={_FILE: _BYTES}))
async def export_memory(user: User, memory: MemoryName, request: Request) -> Response:
    """Download a memory as a state file."""
    service, tenant = _served(request)
    with service.slot(tenant):
        data = await service.on_kept(service.store.export, tenant, memory_name(user, memory))
    named = {"Content-Disposition": f'attachment; filename="{memory}.safetensors"', "Content-Length": str(len(data))}
    return StreamingResponse(_parts(data), media_type=_FILE, headers=named)


@router.put(
    "/{user}/{memory}/import",
    response_model=None,
    responses=documented(KEPT, Memory),
    openapi_extra={"requestBody": {"required": True, "content": {_FILE: {"schema": _BYTES}}}},
)
async def import_memory(user: User, memory: MemoryName, request: Request, expected: Expected = None) -> dict[str, Any]:
    """Upload a state file as a memory, in place of what it held."""
    return describe(await _alone(request, user, memory, expected, MemoryStore.load, await request.body()))


async def _parts(data: bytes) -> AsyncIterator[bytes]:
    """Cut a file, so that sending it ends when the client has taken it and not when it lies in a buffer."""
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def _served(request: Request) -> tuple[Service, str]:
    """The service, and the tenant that it serves."""
    return request.app.state.service, request.state.tenant


async def _alone(
    request: Request, user: str, memory: str, expected: int | None, call: Any, *arguments: Any, also: str | None = None
) -> Any:
    """Call the store while no request of the memory runs, nor of the one that is written `also`."""
    service, tenant = _served(request)
    name = memory_name(user, memory)
    with service.slot(tenant):
        async with AsyncExitStack() as held:
            for one in sorted({name, also or name}):  # in one order everywhere, so that no two wait for each other
                await held.enter_async_context(service.locks.hold((tenant, one)))
            if expected is not None:
                info = await service.on_kept(service.store.info, tenant, name)
                check_version(expected, 0 if info is None else info.version)
            run = service.on_disk if call is MemoryStore.load else service.on_kept  # a file that is sent may be wrong
            return await run(call, service.store, tenant, name, *arguments)
