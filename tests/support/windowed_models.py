"""Tiny models whose layers see unequally far.

Owns: putting windows and KV groups into the spec of a model without them.
Does not know: weights (they are those of the plain model), families' configs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.engine.messages import EngineConfig
from octavo.model.decoder import Decoder
from octavo.model.executor import ModelExecutor
from octavo.model.kv_cache import kv_groups
from octavo.model.runner import Loaded
from octavo.ops.select import select_ops
from support.tiny_models import TinyModel, tiny_random


def windowed(model: TinyModel, windows: Sequence[int]) -> TinyModel:
    """Layer i sees `windows[i % len(windows)]` positions (0: all). Layers with equal windows are
    one group, numbered as they first appear."""
    groups = list(dict.fromkeys(windows))
    counts = [0] * len(groups)
    layers = []
    for index, layer in enumerate(model.spec.layers):
        window = windows[index % len(windows)]
        group = groups.index(window)
        attention = replace(layer.attention, window=window, group=group, layer=counts[group])
        counts[group] += 1
        layers.append(replace(layer, attention=attention))
    return replace(model, spec=replace(model.spec, layers=tuple(layers)))


def load(config: EngineConfig) -> Loaded:
    """An engine's loader: a model whose windows are `config.extra["windows"]`, on the reference.
    With "own_pools" it does not look at those that are planned."""
    model = windowed(tiny_random(layers=4), config.extra["windows"])
    ops = select_ops("reference")
    executor = ModelExecutor(
        Decoder(model.spec, model.source(), ops),
        ops,
        num_blocks=config.num_blocks,
        pools=() if config.extra.get("own_pools") else config.pools,
        block_size=config.block_size,
    )
    info = replace(model.info(), kv_groups=kv_groups(model.spec))
    return Loaded(executor, info, "windowed")
