"""What the torch backend will take is planned without torch: floats only, no codes."""

from __future__ import annotations

from dataclasses import replace

from octavo.model.info import Pack
from octavo.model.sizes import sized
from support.tiny_models import tiny_random


def test_quantised_weights_are_counted_as_the_floats_they_become() -> None:
    matrices = 128 * 64
    packs = (Pack((("gguf:Q4_0", 64), ("gguf:Q4_0", 64)), 64, 1),)
    model = replace(tiny_random().info(), parameters=matrices + 10, packs=packs)
    planned = {
        (backend, dtype): sized(model, backend=backend, dtype=dtype).weight_bytes
        for backend in ("cpu", "cuda")
        for dtype in ("auto", "float32")
    }
    assert planned["cuda", "auto"] == 2 * matrices + 40
    assert planned["cuda", "float32"] == planned["cpu", "float32"] == 4 * matrices + 40
    assert planned["cpu", "auto"] < matrices
