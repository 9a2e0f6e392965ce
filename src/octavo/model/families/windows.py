"""Which layers have a sliding window, and how far they see.

Owns: the meaning of `layer_types` and `sliding_window`.
Does not know: KV groups (shape), what else distinguishes layers.

A window of W tokens counts the token itself, here and in transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.model.families.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"


def read_sliding(fields: Fields, layers: int, usual: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer has a window: `layer_types`, or `usual(index)` where that is absent."""
    types = fields.choices("layer_types", (FULL, SLIDING), layers)
    if types is None:
        return tuple(usual(i) for i in range(layers))
    return tuple(kind == SLIDING for kind in types)


def read_windows(
    fields: Fields, layers: int, usual: Callable[[int], bool], default: int | None = None
) -> tuple[int, ...]:
    """The window of each layer, 0 for those that see everything. `default`: how long it is where
    `sliding_window` is absent (None: it may not be)."""
    sliding = read_sliding(fields, layers, usual)
    if not any(sliding):
        return (0,) * layers
    if default is None:
        window = fields.size("sliding_window")
    else:
        window = fields.size("sliding_window", default)
    return tuple(window if slides else 0 for slides in sliding)


def read_qwen_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Qwen's: `use_sliding_window` switches them on, from layer `max_window_layers` on."""
    used = fields.flag("use_sliding_window") and not fields.null("sliding_window")
    first = fields.count("max_window_layers", 28)
    sliding = read_sliding(fields, layers, lambda i: used and i >= first)
    if any(sliding) and not used:
        raise fields.bad(
            "layer_types",
            fields.values["layer_types"],
            f"{FULL} throughout: use_sliding_window is not true, or sliding_window is null",
        )
    return read_windows(fields, layers, lambda i: used and i >= first, 4096)
