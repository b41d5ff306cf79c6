"""Who may use the server: API keys, each of a tenant; without keys, this machine alone."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from titans.errors import TitansError
from titans.serving.errors import ApiError

LOCAL_TENANT = "local"
_SHORTEST_KEY = 16
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]{1,5})?")  # an address or a name, and a port
logger = logging.getLogger(__name__)


class Keys:
    """The tenants of the API keys, which can be replaced while the server runs.

    Args:
        tenants: the tenant of each API key.
    """

    def __init__(self, tenants: dict[str, str]) -> None:
        self._file: Path | None = None
        self._take(tenants)

    @classmethod
    def load(cls, file: Path) -> Keys:
        """Read the keys of a file; see `load_keys`."""
        keys = cls(load_keys(file))
        keys._file = file
        return keys

    def _take(self, tenants: dict[str, str]) -> None:
        # Looked up by digest: the time that takes tells nothing of how much of a key was right.
        self._tenants = {_digest(key): tenant for key, tenant in tenants.items()}

    def tenant(self, key: str) -> str | None:
        """Return whose key it is; None for an unknown one."""
        return self._tenants.get(_digest(key))

    def reload(self) -> None:
        """Read the file again; where it is not usable, the keys stay as they are and the log says so."""
        if self._file is None:
            return
        try:
            self._take(load_keys(self._file))
        except (TitansError, OSError) as error:
            logger.error("the keys stay as they are: %s", error)
        else:
            logger.info("%s keys read again", len(self._tenants))


class Access:
    """Tells the tenant of a request to the API, before its body is read.

    What decides is the path that the routes see and the headers as they came: a URL put together from them can be
    made to read otherwise.

    Args:
        app: what comes after.
        keys: the API keys; None where there are none and everybody is the same tenant.
    """

    def __init__(self, app: ASGIApp, keys: Keys | None) -> None:
        self.app, self.keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that is allowed, with `tenant` in its state."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                if self.keys is None:
                    _check_same_site(scope, headers)
                if scope["path"].startswith("/v1/"):
                    scope.setdefault("state", {})["tenant"] = self._tenant(headers)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _tenant(self, headers: Headers) -> str:
        if self.keys is None:
            return LOCAL_TENANT
        scheme, _, key = headers.get("authorization", "").partition(" ")
        tenant = self.keys.tenant(key.strip()) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise ApiError(401, "the API key is missing or unknown: send it as a bearer token", "invalid_api_key")
        return tenant


def _check_same_site(scope: Scope, headers: Headers) -> None:
    """Refuse what a page of another site sends: without keys, the browser of this machine could do anything here."""
    host, origin = headers.get("host", ""), headers.get("origin")
    named = _HOST.fullmatch(host)
    if named is None or not is_loopback(named[1].strip("[]").lower()):  # a name of theirs that leads here
        raise ApiError(403, f"without API keys this server is localhost and not {host[:100]!r}", "wrong_host")
    foreign = origin is not None and origin.lower().partition("://")[2] != host.lower()
    foreign = foreign or headers.get("sec-fetch-site") == "cross-site"
    if foreign and not _is_link_to_page(scope):
        raise ApiError(403, "without API keys this server answers no page of another site", "cross_site")


def _is_link_to_page(scope: Scope) -> bool:
    """Whether somebody follows a link to the page, which is the same for all and cannot be framed."""
    return scope["method"] in ("GET", "HEAD") and (scope["path"] == "/" or scope["path"].startswith("/static/"))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def load_keys(path: Path) -> dict[str, str]:
    """Read the API keys.

    Args:
        path: a JSON file with the tenant of each key, `{"a-long-secret-of-yours": "tenant"}`.

    Returns:
        The tenant of each key.

    Raises:
        TitansError: the file is not that.
    """
    expected = f'expected {{"KEY": "TENANT", ...}} with keys of at least {_SHORTEST_KEY} plain characters'
    try:
        keys = json.loads(path.read_bytes())
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
