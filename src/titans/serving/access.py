"""Who may use the server: API keys, each of a tenant; without keys, this machine alone."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from titans.errors import TitansError
from titans.serving.errors import ApiError

LOCAL_TENANT = "local"
_SHORTEST_KEY = 16


class Access:
    """Tells the tenant of a request to the API, before its body is read.

    Args:
        app: what comes after.
        keys: the tenant of each API key; None where there are no keys and everybody is the same tenant.
    """

    def __init__(self, app: ASGIApp, keys: dict[str, str] | None) -> None:
        self.app = app
        # Looked up by digest: the time that takes tells nothing of how much of a key was right.
        self.tenants = None if keys is None else {_digest(key): tenant for key, tenant in keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that is allowed, with `tenant` in its state."""
        if scope["type"] == "http":
            connection = HTTPConnection(scope)
            try:
                if self.tenants is None:
                    _check_same_site(connection)
                if connection.url.path.startswith("/v1/"):
                    connection.state.tenant = self._tenant(connection)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _tenant(self, connection: HTTPConnection) -> str:
        if self.tenants is None:
            return LOCAL_TENANT
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        tenant = self.tenants.get(_digest(key.strip())) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise ApiError(401, "the API key is missing or unknown: send it as a bearer token", "invalid_api_key")
        return tenant


def _check_same_site(connection: HTTPConnection) -> None:
    """Refuse what a page of another site sends: without keys, the browser of this machine could do anything here."""
    host, origin = connection.url.hostname or "", connection.headers.get("origin")
    if not is_loopback(host):  # a name of theirs that leads here
        raise ApiError(403, f"without API keys this server is localhost and not {host}", "wrong_host")
    foreign = origin is not None and urlsplit(origin).netloc != connection.headers.get("host")
    foreign = foreign or connection.headers.get("sec-fetch-site") == "cross-site"
    if foreign and not _is_link_to_page(connection):
        raise ApiError(403, "without API keys this server answers no page of another site", "cross_site")


def _is_link_to_page(connection: HTTPConnection) -> bool:
    """Whether somebody follows a link to the page, which is the same for all and cannot be framed."""
    scope = connection.scope
    return scope["method"] in ("GET", "HEAD") and (scope["path"] == "/" or scope["path"].startswith("/static/"))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def load_keys(path: Path) -> dict[str, str]:
    """Read the API keys.

    Args:
        path: a JSON file with the tenant of each key, `{"a long secret": "tenant"}`.

    Returns:
        The tenant of each key.

    Raises:
        TitansError: the file is not that.
    """
    expected = f'expected {{"KEY": "TENANT", ...}} with keys of at least {_SHORTEST_KEY} plain characters'
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TitansError(f"{path} is no JSON file: {expected}") from error
    if not isinstance(keys, dict) or not keys:
        raise TitansError(f"{path} holds no keys: {expected}")
    for key, tenant in keys.items():
        if len(key) < _SHORTEST_KEY or not re.fullmatch(r"[!-~]+", key):
            raise TitansError(f"{path} holds a key that is too short or cannot be sent: {expected}")
        if not isinstance(tenant, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", tenant):
            raise TitansError(f"{path} names the tenant {tenant!r}: expected letters, digits and ._-")
    return keys


def check_host(host: str, has_keys: bool) -> None:
    """Refuse to serve others without keys.

    Args:
        host: the address to bind to.
        has_keys: whether clients must have a key.

    Raises:
        TitansError: there are no keys and the address can be reached from elsewhere.
    """
    if not has_keys and not is_loopback(host):
        raise TitansError(
            f"without API keys the server binds to this machine only, not to {host}: "
            "give --keys FILE, or leave --host out"
        )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
