"""Models in GGUF files: the same logits as from the checkpoint that they were made of."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from octavo.model.errors import ModelError
from octavo.model.registry import inspect, open_model
from support import golden_models, run_decoder
from support.gguf_files import convert, gguf_name, permute

GOLDEN = Path(__file__).parents[1] / "golden"
YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 32,
    "llama.rope.scaling.yarn_beta_fast": 8.0,
    "llama.rope.scaling.yarn_beta_slow": 2.0,
}
LINEAR = {
    "qwen2.rope.freq_base": 300000.0,
    "qwen2.rope.scaling.type": "linear",
    "qwen2.rope.scaling.factor": 2.0,
}


def quantized(name: str, path: Path, default: Type, **options: Any) -> Path:
    config, tensors = golden_models.CONFIGS[name], golden_models.tensors(name)
    return convert(path, config, tensors, default=default, **options)


@pytest.mark.parametrize("default", [Type.F32, Type.F16, Type.BF16])
@pytest.mark.parametrize(
    ("name", "metadata", "exact"),
    [
        ("llama_tied_yarn_f16", YARN, (Type.F32, Type.F16)),
        ("qwen2_bf16", LINEAR, (Type.F32, Type.BF16)),
    ],
)
def test_e05_logits_equal_transformers(
    name: str, metadata: dict[str, Any], exact: tuple[Type, ...], default: Type, tmp_path: Path
) -> None:
    """No `output.weight` (tied), Qwen biases, rope.freq_base and rope.scaling, q/k row order. In
    the checkpoint's own type the conversion loses nothing; in the other half type it rounds."""
    path = quantized(name, tmp_path / "m.gguf", default, metadata=metadata)
    with np.load(GOLDEN / f"{name}.npz") as golden:
        ids, expected = golden["ids"], golden["logits"]
    decoder, ops = run_decoder.load(path)
    found = run_decoder.logits(decoder, ops, ids, 16)
    worst = np.abs(found - expected).max() / np.abs(expected).max()
    assert worst < (1e-4 if default in exact else 5e-2)


def test_e05_llama_biases_are_in_the_row_order_of_their_matrices(tmp_path: Path) -> None:
    """attention_bias and mlp_bias, from the names of tensors alone."""
    path = quantized("llama", tmp_path / "m.gguf", Type.F32)
    source, tensors = open_model(path).source, golden_models.tensors("llama")
    for part, module in (
        ("q", "self_attn.q_proj"),
        ("k", "self_attn.k_proj"),
        ("up", "mlp.up_proj"),
    ):
        for suffix in ("", ".bias"):
            found = source.get(f"layers.1.{part}{suffix}").dequantize()
            name = f"model.layers.1.{module}{suffix or '.weight'}"
            np.testing.assert_array_equal(found, tensors[name])


QUANTIZERS = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0)


@pytest.mark.parametrize("embedding", [Type.Q8_0, Type.F16])
def test_e05_types_may_differ_by_tensor(embedding: Type, tmp_path: Path) -> None:
    """Each matrix equals the gguf package's dequantisation, q and k after undoing the row order."""
    config = {**golden_models.CONFIGS["llama_tied_yarn_f16"], "tie_word_embeddings": False}
    tensors = golden_models.tensors("llama_tied_yarn_f16")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][::-1].copy()
    config["intermediate_size"] = 128
    rng = np.random.default_rng(1)
    for i in range(3):
        at = f"model.layers.{i}.mlp."
        tensors[at + "gate_proj.weight"] = rng.normal(size=(128, 64)).astype(np.float32)
        tensors[at + "up_proj.weight"] = rng.normal(size=(128, 64)).astype(np.float32)
        tensors[at + "down_proj.weight"] = rng.normal(size=(64, 128)).astype(np.float32)
    matrices = [name for name, value in tensors.items() if value.ndim == 2]
    types = {gguf_name(n): QUANTIZERS[i % len(QUANTIZERS)] for i, n in enumerate(matrices)}
    types |= {"token_embd.weight": embedding, "output.weight": Type.F16}
    path = convert(tmp_path / "m.gguf", config, tensors, types=types)
    source = open_model(path).source
    heads = {"q_proj": 4, "k_proj": 1}
    for name in matrices:
        kind = types[gguf_name(name)]
        count = next((n for part, n in heads.items() if part in name), None)
        stored = tensors[name] if count is None else permute(tensors[name], count)
        if kind == Type.F16:
            expected = stored.astype(np.float16).astype(np.float32)
        else:
            expected = gguf.quants.dequantize(gguf.quants.quantize(stored, kind), kind)
        if count is not None:
            half = expected.shape[0] // count // 2
            split = expected.reshape(count, half, 2, -1).swapaxes(1, 2)
            expected = split.reshape(expected.shape)
        canonical = _canonical(name)
        raw = source.get(canonical)
        np.testing.assert_array_equal(raw.dequantize(), expected, err_msg=name)
        assert raw.format == ("f16" if kind == Type.F16 else f"gguf:{kind.name}")
        assert raw.data.shape[0] == raw.shape[0]


def _canonical(name: str) -> str:
    whole = {"model.embed_tokens.weight": "embed", "lm_head.weight": "head"}
    if name in whole:
        return whole[name]
    _, _, layer, _, module, _ = name.split(".")
    return f"layers.{layer}.{module.removesuffix('_proj')}"


def test_e05_a_vocabulary_that_fits_no_tile_is_kept(tmp_path: Path) -> None:
    """Vocabulary of 97 rows with 90 tokens: the rest is padding and never sampled."""
    metadata = {**YARN, "llama.vocab_size": 90}
    path = quantized(
        "llama_tied_yarn_f16", tmp_path / "m.gguf", Type.F32, metadata=metadata, tokens=90
    )
    opened = open_model(path)
    assert (opened.spec.vocab, opened.spec.vocab_used) == (97, 90)
    assert opened.spec.tied
    decoder, ops = run_decoder.load(path)
    assert run_decoder.logits(decoder, ops, [1, 2, 3], 3).shape == (3, 90)


def test_e05_rope_freqs_divide_the_frequencies(tmp_path: Path) -> None:
    """How LLaMA 3 files carry their scaling: divided by them, the frequencies are llama3's."""
    with np.load(GOLDEN / "rope.npz") as golden:
        scaled, plain = golden["llama3.frequencies"], golden["default.frequencies"]
    config = {**golden_models.CONFIGS["llama"], "head_dim": 32, "num_hidden_layers": 1}
    config |= {"rope_theta": 20000.0}
    tensors = _plain_tensors(config)
    path = convert(
        tmp_path / "m.gguf", config, tensors, extra={"rope_freqs.weight": plain / scaled}
    )
    rope = open_model(path).spec.layers[0].rope
    assert rope is not None
    np.testing.assert_allclose(rope.inverse_frequencies, scaled, rtol=1e-6)


def _plain_tensors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    hidden, width, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = 4 * head, 2 * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (97, hidden)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {
            at + "input_layernorm": (hidden,),
            at + "post_attention_layernorm": (hidden,),
            at + "self_attn.q_proj": (q, hidden),
            at + "self_attn.k_proj": (kv, hidden),
            at + "self_attn.v_proj": (kv, hidden),
            at + "self_attn.o_proj": (hidden, q),
            at + "mlp.gate_proj": (width, hidden),
            at + "mlp.up_proj": (width, hidden),
            at + "mlp.down_proj": (hidden, width),
        }
    shapes["model.norm"] = (hidden,)
    return {
        f"{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def test_b07_gguf_rope_that_is_unknown_is_refused_by_name(tmp_path: Path) -> None:
    metadata = {**YARN, "llama.rope.scaling.type": "foo"}
    path = quantized("llama_tied_yarn_f16", tmp_path / "m.gguf", Type.F32, metadata=metadata)
    with pytest.raises(ModelError, match="'foo' is unknown"):
        inspect(path)


@pytest.mark.parametrize(
    "key", ["block_count", "embedding_length", "attention.head_count", "attention.key_length"]
)
def test_e05_absurd_sizes_are_refused_before_anything_is_built(key: str, tmp_path: Path) -> None:
    metadata = {f"llama.{key}": 2**31 - 2}
    path = quantized("llama_tied_yarn_f16", tmp_path / "m.gguf", Type.F32, metadata=metadata)
    begin = time.monotonic()
    with pytest.raises(ModelError, match=r"214748364|34359738336"):
        inspect(path)
    assert time.monotonic() - begin < 2


def test_e05_missing_extra_and_misshapen_tensors_are_one_error(tmp_path: Path) -> None:
    tensors = golden_models.tensors("llama_tied_yarn_f16")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((3, 64), np.float32)
    path = convert(
        tmp_path / "m.gguf",
        golden_models.CONFIGS["llama_tied_yarn_f16"],
        tensors,
        extra={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)},
    )
    with pytest.raises(ModelError) as caught:
        inspect(path)
    text = str(caught.value)
    assert caught.value.code == "bad_tensors"
    assert "1 missing: blk.1.ffn_up.weight (112, 64)" in text
    assert "1 extra: blk.0.attn_sinks.weight (4,)" in text
    assert "1 misshapen: blk.0.ffn_up.weight (3, 64) instead of (112, 64)" in text


def test_facts_and_end_tokens_come_from_the_metadata(tmp_path: Path) -> None:
    metadata = {
        **YARN,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*(f"t{i}" for i in range(95)), "<|eot_id|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 95 + [3, 1],
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 7,
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 12,
    }
    path = quantized(
        "llama_tied_yarn_f16",
        tmp_path / "m.gguf",
        Type.Q8_0,
        types={f"blk.{i}.ffn_down.weight": Type.F16 for i in range(3)},
        metadata=metadata,
    )
    info = inspect(path)
    assert info.eos_token_ids == (5, 7, 95), "96 is text like any other: no control token"
    assert info.bos_token_id == 3
    assert info.generation == {"temperature": 0.25, "top_k": 12}
    assert (info.format, info.quantization) == ("gguf", "Q8_0")
    assert info.architecture == "LlamaForCausalLM"
    assert info.max_position == 4 * 32
    assert info.tokenizer_files == (str(path),)


def test_e08_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError) as caught:
        inspect(path)
    assert caught.value.code == "unsupported_architecture"
    assert "'mamba'" in str(caught.value).splitlines()[0]
    assert "llama, qwen2" in str(caught.value)
