"""Which class a request is served in: realtime or batch.

Owns: the words of `service_tier` and of the header X-Octavo-Class, and which of the two counts.
Does not know: what the classes mean for scheduling (core).

OpenAI's tiers map onto the two classes: "auto", "default", "priority" and "scale" are realtime,
"flex" is batch; "realtime" and "batch" may be given as they are. The header is for proxies that
decide for their clients: it counts before the body.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from octavo.core.params import ParamError
from octavo.core.request import ServiceClass

CLASS_HEADER = "X-Octavo-Class"

TIERS = {
    "auto": ServiceClass.REALTIME,
    "default": ServiceClass.REALTIME,
    "priority": ServiceClass.REALTIME,
    "scale": ServiceClass.REALTIME,
    "flex": ServiceClass.BATCH,
    "realtime": ServiceClass.REALTIME,
    "batch": ServiceClass.BATCH,
}


def service_class_of(scope: Scope, tier: str | None = None) -> ServiceClass:
    """Raises ParamError for a word that is none."""
    header = Headers(scope=scope).get(CLASS_HEADER)
    if header is not None:
        return _class(header.strip().lower(), CLASS_HEADER)
    return ServiceClass.REALTIME if tier is None else _class(tier, "service_tier")


def _class(word: str, param: str) -> ServiceClass:
    if word not in TIERS:
        raise ParamError(
            param, f"{param} is {word[:40]!r}; it must be one of {', '.join(sorted(TIERS))}"
        )
    return TIERS[word]
