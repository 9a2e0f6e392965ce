"""What `model.runner.load` is told, for tests of models without an engine around them.

Owns: small defaults.
Does not know: which backend a test is about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.engine.messages import EngineConfig


def load_config(model: Path, **fields: Any) -> EngineConfig:
    plain = {"max_model_len": 256, "num_blocks": 32, "block_size": 16}
    return EngineConfig(model=str(model), served_name="m", **{**plain, **fields})
