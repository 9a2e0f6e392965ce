"""The decoder against a dense LLaMA of its own, whole and in chunks."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import octavo.model.decoder
from octavo.core.plan import Row, Want
from octavo.model.batch import Work, assemble
from octavo.model.decoder import Decoder
from octavo.model.kv_cache import bytes_per_block, cache_layout
from octavo.ops import AttentionSpec
from octavo.ops.select import select_ops
from support.dense_model import dense_logits
from support.tiny_models import TinyModel, chain, loop, tiny_random
from support.tiny_tokenizer import EOS, USER


def decoder_logits(model: TinyModel, ids: list[int], chunks: list[int], rows: bool) -> np.ndarray:
    """All logits, computed in `chunks` over a scattered block table."""
    ops = select_ops("reference", row_at_a_time=rows)
    decoder = Decoder(model.spec, model.source(), ops)
    cache = ops.allocate_cache(cache_layout(model.spec, 4), [64])
    table = list(np.random.default_rng(1).permutation(64)[: -(-len(ids) // 4)])
    parts, start = [], 0
    for count in chunks:
        row = Row(0, start, ids[start : start + count], (table,), start, 0, Want.PROMPT_LOGPROBS, 0)
        batch = ops.upload(assemble([Work(0, row, row.tokens)], 4, 1).batch)
        parts.append(decoder.logits(decoder.forward(batch, cache)))
        start += count
    assert start == len(ids)
    return np.concatenate(parts)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_logits_match_a_dense_float64_model_whole_and_in_chunks(
    family: str, tied: bool, rows: bool
) -> None:
    model = tiny_random(family, seed=5, layers=3, tied=tied)
    ids = [int(i) for i in np.random.default_rng(2).integers(0, 512, 37)]
    expected = dense_logits(model, ids)
    for chunks in ([37], [1] * 37, [5, 16, 3, 13]):
        got = decoder_logits(model, ids, chunks, rows)
        assert np.abs(got - expected).max() < 1e-4


def test_scales_of_embedding_and_logits_are_applied() -> None:
    model = tiny_random(seed=6)
    model.spec = replace(model.spec, embed_scale=3.5, logit_scale=0.25)
    ids = [1, 2, 3, 400]
    got = decoder_logits(model, ids, [4], rows=False)
    assert np.abs(got - dense_logits(model, ids)).max() < 1e-4


def test_padding_rows_of_the_vocabulary_have_no_logits() -> None:
    model = tiny_random(seed=7, vocab=600)
    got = decoder_logits(model, [1, 599], [2], rows=False)
    assert got.shape == (2, 512)
    assert np.abs(got - dense_logits(model, [1, 599])[:, :512]).max() < 1e-4


def test_a_tied_head_shares_the_packed_table() -> None:
    model = tiny_random(seed=8, tied=True)
    packed = []
    ops = select_ops("reference")
    original = ops.pack
    ops.pack = lambda *a, **k: packed.append(a[0][0].name) or original(*a, **k)  # type: ignore[method-assign]
    Decoder(model.spec, model.source(), ops)
    assert packed.count("embed") == 1
    assert "head" not in packed


def test_the_chain_and_loop_models_do_as_they_say() -> None:
    model = chain("Hi 😀 日本 é")
    logits = decoder_logits(model, [USER, *model.script[:-1]], [len(model.script)], rows=False)
    assert logits.argmax(-1).tolist() == model.script
    assert model.script[-1] == EOS
    assert model.tokenizer.build().decode(model.script) == "Hi 😀 日本 é"
    assert decoder_logits(loop(), [3, 9, 77], [3], rows=False).argmax(-1).tolist() == [3, 9, 77]


def test_attention_sinks_are_refused() -> None:
    model = tiny_random()
    layer = model.spec.layers[0]
    attention: AttentionSpec = replace(layer.attention, sinks=True)
    spec = replace(model.spec, layers=(replace(layer, attention=attention),))
    with pytest.raises(ValueError, match="sinks"):
        Decoder(spec, model.source(), select_ops("reference"))


def test_cache_layout_and_bytes_per_block() -> None:
    model = tiny_random(layers=3)
    layout = cache_layout(model.spec, 16)
    assert layout.layers == (3,)
    assert bytes_per_block(layout) == 16 * model.info().kv_bytes_per_token
    first = model.spec.layers[0]
    odd = replace(first, attention=replace(first.attention, head_dim=8))
    with pytest.raises(ValueError, match="kv_heads, head_dim"):
        cache_layout(replace(model.spec, layers=(first, odd)), 16)


def test_the_decoder_imports_neither_numpy_nor_torch() -> None:
    tree = ast.parse(Path(octavo.model.decoder.__file__).read_text())
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] + [getattr(node, "module", None) or ""])
    }
    assert not {"numpy", "torch"} & {name.split(".")[0] for name in names}
