"""Who may call what: API keys with roles, and the allow-list of routes that need none.

Owns: the key file's format, hashed keys, the comparison, roles, and the guard over every route.
Does not know: what the routes do.

The key file has one key a line; empty lines and lines that begin with `#` are skipped:

    client:alice:sk-the-key-itself
    metrics:prometheus:sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae

that is role, a name for the logs, and the key or the SHA-256 of it in hex. Roles: `client` may use
the model, `metrics` may read /metrics and /stats, `admin` may do everything. Keys given by
`--api-key` or the environment are admins named `key-1`, `key-2`, ... Keys are kept hashed; they are
looked for in the Authorization header only, never in the query.

Deny by default: a route that stands in none of the tables below needs an admin's key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import ApiError

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class Role(StrEnum):
    CLIENT = "client"
    METRICS = "metrics"
    ADMIN = "admin"


OPEN_PATHS = frozenset({"/", "/health", "/ready"})
"""Need no key. The page at `/` is a static file that holds nothing; what it calls is guarded."""
METRICS_PATHS = frozenset({"/metrics"})
SHARED_PATHS = frozenset({"/stats", "/version"})
"""For clients and for metrics readers."""
CLIENT_PATHS = frozenset({"/tokenize", "/detokenize", "/generate"})
CLIENT_PREFIX = "/v1/"


class KeyFileError(ValueError):
    """The key file (or a key) cannot be used; the message names the line, never the key."""


class PublicAddressError(ValueError):
    """The address is reachable from other machines and no key is configured."""


@dataclass(frozen=True, slots=True)
class Key:
    """`digest` is the SHA-256 of the key; `name` is what logs call it."""

    name: str
    role: Role
    digest: bytes


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def load_keys(plain: Iterable[str], file: str | None) -> tuple[Key, ...]:
    """Keys of the options and of the key file. Raises KeyFileError."""
    keys = []
    for number, text in enumerate(plain, 1):
        if not text.strip():
            raise KeyFileError(f"API key {number} is empty; remove it or give it a value")
        keys.append(Key(f"key-{number}", Role.ADMIN, digest(text.strip())))
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"cannot read the key file {file}: {error}") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                keys.append(_parse_line(line.strip(), f"{file}, line {number}"))
        if not keys:
            raise KeyFileError(f"the key file {file} holds no key")
    return tuple(keys)


def _parse_line(line: str, place: str) -> Key:
    role, _, rest = line.partition(":")
    name, _, secret = rest.partition(":")
    if role not in set(Role):
        roles = ", ".join(Role)
        raise KeyFileError(f"{place}: a line is role:name:key, with a role of {roles}")
    if not _NAME.fullmatch(name):
        raise KeyFileError(f"{place}: the name may hold up to 64 letters, digits and _ . @ -")
    if not secret:
        raise KeyFileError(f"{place}: the key of {name} is empty")
    if secret.startswith("sha256:"):
        text = secret.removeprefix("sha256:")
        if not _HEX.fullmatch(text):
            raise KeyFileError(f"{place}: sha256 of {name} must be 64 hexadecimal digits")
        return Key(name, Role(role), bytes.fromhex(text))
    return Key(name, Role(role), digest(secret))


def check_exposure(host: str, keys: tuple[Key, ...], allow_public: bool) -> None:
    """Raise PublicAddressError for an address beyond this machine without a key."""
    if keys or allow_public or _is_loopback(host):
        return
    raise PublicAddressError(
        f"{host or 'an empty host'} can be reached from other machines and no API key is set. "
        "Set one (--api-key, OCTAVO_API_KEY or --api-key-file), bind 127.0.0.1, "
        "or say --allow-public if the network is trusted."
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def roles_for(path: str) -> frozenset[Role]:
    """The roles that may call `path`."""
    roles = {Role.ADMIN}
    if path.startswith(CLIENT_PREFIX) or path in CLIENT_PATHS | SHARED_PATHS:
        roles.add(Role.CLIENT)
    if path in METRICS_PATHS | SHARED_PATHS:
        roles.add(Role.METRICS)
    return frozenset(roles)


class AuthMiddleware:
    """Guards everything behind it. Without any key configured, everybody may do everything."""

    def __init__(self, app: ASGIApp, keys: tuple[Key, ...]) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.keys and scope["path"] not in OPEN_PATHS:
            try:
                key = self._authenticate(scope)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
            scope["state"]["key_name"] = key.name
        await self.app(scope, receive, send)

    def _authenticate(self, scope: Scope) -> Key:
        presented = _bearer(scope)
        if presented is None:
            raise _unauthorized(
                "No API key given; send it as 'Authorization: Bearer <key>'.", "missing_api_key"
            )
        key = self._find(presented)
        if key is None:
            raise _unauthorized("The API key is not valid.", "invalid_api_key")
        if key.role not in roles_for(scope["path"]):
            raise ApiError(
                403,
                f"The role of this key ({key.role}) may not use this route.",
                code="insufficient_role",
            )
        return key

    def _find(self, presented: str) -> Key | None:
        """Compares with every key, so that the time tells nothing about which one is near."""
        found = None
        wanted = digest(presented)
        for key in self.keys:
            if hmac.compare_digest(key.digest, wanted):
                found = key
        return found


def _bearer(scope: Scope) -> str | None:
    """The token of the one Authorization header; schemes are case-insensitive (RFC 9110)."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    value: bytes = values[0]
    scheme, _, token = value.strip().partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        return None
    return token.decode("utf-8", "surrogateescape")


def _unauthorized(message: str, code: str) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})
