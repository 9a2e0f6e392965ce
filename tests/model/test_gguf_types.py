"""Every tensor type that the gguf package can dequantise loads, and what it is held as is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from octavo.model.errors import ModelError
from octavo.model.gguf import BLOCK_SIZES
from octavo.model.registry import inspect, open_model
from octavo.ops.native import native_installed
from octavo.ops.packing import CODE_FORMATS
from octavo.ops.select import select_ops
from support import golden_models, run_decoder
from support.gguf_files import convert, gguf_name, random_blocks
from support.golden_models import CONFIGS

TYPES = sorted({Type.F32, Type.F16, *gguf.quants._type_traits})
HIDDEN, VOCAB, LAYERS = 256, 301, 2
CONFIG: dict[str, Any] = {
    **CONFIGS["qwen2_bf16"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Rows of 256 and more, so that every type fits; q and k keep their order in this family."""

needs_kernels = pytest.mark.skipif(not native_installed(), reason="needs the compiled kernels")


def shapes() -> dict[str, tuple[int, ...]]:
    """Names in a checkpoint -> shapes of the matrices, and of vectors."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name, outputs, inputs in (
            ("self_attn.q_proj", 256, 256),
            ("self_attn.k_proj", 128, 256),
            ("self_attn.v_proj", 128, 256),
            ("self_attn.o_proj", 256, 256),
            ("mlp.gate_proj", 512, 256),
            ("mlp.up_proj", 512, 256),
            ("mlp.down_proj", 256, 512),
        ):
            found[f"{at}{name}.weight"] = (outputs, inputs)
            if name[10:11] in "qkv" and name.startswith("self_attn") and "o_proj" not in name:
                found[f"{at}{name}.bias"] = (outputs,)
        found[f"{at}input_layernorm.weight"] = (HIDDEN,)
        found[f"{at}post_attention_layernorm.weight"] = (HIDDEN,)
    return found


def write(path: Path, kinds: Any, **options: Any) -> dict[str, tuple[np.ndarray, Type]]:
    """A model whose matrix `name` has the type `kinds(name)`; the blocks by canonical name."""
    rng = np.random.default_rng(0)
    tensors, raw, kept = {}, {}, {}
    for index, (name, shape) in enumerate(shapes().items()):
        tensors[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        if len(shape) == 2:
            blocks = random_blocks(kinds(name), *shape, seed=index)
            raw[gguf_name(name)] = kept[canonical(name)] = (blocks, kinds(name))
    convert(path, CONFIG, tensors, raw=raw, **options)
    return kept


def canonical(name: str) -> str:
    whole = {"model.embed_tokens.weight": "embed", "lm_head.weight": "head"}
    if name in whole:
        return whole[name]
    _, _, layer, _, module, _ = name.split(".")
    return f"layers.{layer}.{module.removesuffix('_proj')}"


def values(blocks: np.ndarray, kind: Type) -> np.ndarray:
    if kind in (Type.F32, Type.F16):
        return blocks.astype(np.float32)
    return gguf.quants.dequantize(blocks, kind)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_no_type_that_the_package_knows_is_left_out() -> None:
    assert {kind.name for kind in TYPES} <= {name for name, _, _ in BLOCK_SIZES.values()}
    assert len(TYPES) >= 25


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_e05_every_type_loads_as_the_gguf_package_dequantises_it(
    kind: Type, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    stored = write(path, lambda name: kind)
    source = open_model(path).source
    for name, (blocks, _) in stored.items():
        expected = values(blocks, kind)
        assert np.isfinite(expected).all() and expected.std() > 0
        np.testing.assert_array_equal(source.get(name).dequantize(), expected, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_e05_every_type_is_held_exactly_or_says_what_it_loses(kind: Type, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    stored = write(path, lambda name: kind)
    source, ops = open_model(path).source, select_ops("cpu")
    exact = kind.name in CODE_FORMATS or kind in (Type.F32, Type.BF16)
    for name in ("embed", "layers.1.down", "layers.0.k"):
        blocks, _ = stored[name]
        packed = ops.pack([source.get(name)])
        held = packed.embed(np.arange(len(blocks)), ops._pool)  # type: ignore[attr-defined]
        expected = values(blocks, kind)
        np.testing.assert_array_equal(held, expected if exact else to_bf16(expected), err_msg=name)
    label = {"F16": "float16"}.get(kind.name, kind.name)
    assert ops.notes == ([] if exact else [f"{label} weights are rounded to bfloat16"])


@needs_kernels
@pytest.mark.parametrize("embedding", [Type.Q8_0, Type.Q4_K, Type.Q6_K])
def test_e05_types_of_the_embedding_and_layers_may_all_differ(
    embedding: Type, tmp_path: Path
) -> None:
    """token_embd in codes and output in F16, layers of different types, a vocabulary of 301: the
    logits are those of the same weights in float32."""

    def kinds(name: str) -> Type:
        if "embed" in name or "lm_head" in name:
            return embedding if "embed" in name else Type.F16
        return Type.Q4_K if "layers.0" in name else Type.Q2_K

    path = tmp_path / "m.gguf"
    write(path, kinds)
    ids = [int(i) for i in np.random.default_rng(1).integers(0, VOCAB, 24)]
    expected = run_decoder.logits(*run_decoder.load(path), ids, 24)
    plain = run_decoder.logits(*run_decoder.load(path, backend="cpu", dtype="float32"), ids, 8)
    own = run_decoder.logits(*run_decoder.load(path, backend="cpu"), ids, 8)
    assert expected.shape == plain.shape == own.shape == (24, VOCAB)
    worst = np.abs(expected).max()
    assert np.abs(plain - expected).max() < 1e-4 * worst
    assert np.abs(own - expected).max() < 0.1 * worst


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q5_1, Type.IQ4_NL])
def test_e05_rows_need_not_be_a_multiple_of_256(kind: Type, tmp_path: Path) -> None:
    """Rows of 96: the types of 32 weights a block take them, and K types are refused by name."""
    name, config = "mistral", {**golden_models.CONFIGS["mistral"], "model_type": "llama"}
    tensors = golden_models.tensors(name)
    down = gguf_name("model.layers.1.mlp.down_proj.weight")
    blocks = random_blocks(kind, 64, 96)
    path = convert(tmp_path / "m.gguf", config, tensors, raw={down: (blocks, kind)})
    found = open_model(path).source.get("layers.1.down")
    np.testing.assert_array_equal(found.dequantize(), values(blocks, kind))


def test_e05_a_split_model_equals_the_whole(tmp_path: Path) -> None:
    write(tmp_path / "whole.gguf", lambda name: Type.Q8_0)
    write(tmp_path / "parts.gguf", lambda name: Type.Q8_0, split_max_tensors=9)
    parts = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(parts) > 2 and parts[0].name.endswith(f"-00001-of-0000{len(parts)}.gguf")
    whole = open_model(tmp_path / "whole.gguf")
    for part in (parts[0], parts[-1]):
        split = open_model(part)
        assert split.info.parameters == whole.info.parameters
        assert split.info.file_bytes == sum(p.stat().st_size for p in parts)
        for name in ("embed", "head", "layers.1.down"):
            a, b = (opened.source.get(name).dequantize() for opened in (split, whole))
            np.testing.assert_array_equal(a, b)


def test_e05_a_big_endian_file_is_refused_as_such(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="big-endian"):
        inspect(tmp_path / "m.gguf")


@pytest.mark.parametrize(("extra_kind", "fine"), [(1, False), (3, True), (4, True)])
def test_e05_more_tokens_than_rows(
    extra_kind: int, fine: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A text could be cut into tokens that have no row; control tokens come by name alone."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB + 1)],
        "tokenizer.ggml.token_type": [*[1] * VOCAB, extra_kind],
    }
    write(tmp_path / "m.gguf", lambda name: Type.Q8_0, metadata=metadata)
    if fine:
        assert inspect(tmp_path / "m.gguf").vocab_used == VOCAB
        assert "1 added tokens (from id 301)" in caplog.text
        return
    with pytest.raises(ModelError, match=r"302 tokens.*301 rows") as caught:
        inspect(tmp_path / "m.gguf")
    assert caught.value.code == "vocabulary_mismatch"
