"""Who may use the server: API keys, each of a tenant; without keys, this machine alone."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from pathlib import Path

from starlette.requests import HTTPConnection

from titans.errors import TitansError
from titans.serving.errors import ApiError

LOCAL_TENANT = "local"
_SHORTEST_KEY = 16


class Access:
    """Tells the tenant of a request.

    Args:
        keys: the tenant of each API key; None where there are no keys and everybody is the same tenant.
    """

    def __init__(self, keys: dict[str, str] | None) -> None:
        # Looked up by digest: the time that takes tells nothing of how much of a key was right.
        self.tenants = None if keys is None else {_digest(key): tenant for key, tenant in keys.items()}

    def tenant(self, connection: HTTPConnection) -> str:
        """Return the tenant of a request.

        Raises:
            ApiError: 401, the key is missing or unknown.
        """
        if self.tenants is None:
            return LOCAL_TENANT
        scheme, _, key = connection.headers.get("authorization", "").partition(" ")
        tenant = self.tenants.get(_digest(key.strip())) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise ApiError(401, "the API key is missing or unknown: send it as a bearer token", "invalid_api_key")
        return tenant


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
    expected = f'expected {{"KEY": "TENANT", ...}} with keys of at least {_SHORTEST_KEY} characters'
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TitansError(f"{path} is no JSON file: {expected}") from error
    if not isinstance(keys, dict) or not keys:
        raise TitansError(f"{path} holds no keys: {expected}")
    for key, tenant in keys.items():
        if len(key) < _SHORTEST_KEY:
            raise TitansError(f"{path} holds a key of {len(key)} characters: {expected}")
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
