"""What may be wrong with a model's directory, and what its facts are."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from octavo.model import families
from octavo.model.errors import ModelError
from octavo.model.families.fields import Fields
from octavo.model.registry import inspect, open_model
from support import golden_models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return golden_models.write_checkpoint(tmp_path / "m", "llama")


def change(path: Path, **changes: Any) -> Path:
    """The config with `changes`; `...` removes a key."""
    config = {**golden_models.CONFIGS["llama"], **changes}
    golden_models.write_config(path, {k: v for k, v in config.items() if v is not ...})
    return path


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        inspect(path)
    with pytest.raises(ModelError) as again:
        open_model(path)
    assert str(again.value) == str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"architectures": ["FooForCausalLM"]}, "architectures ['FooForCausalLM']"),
        ({"architectures": ["FooModel", "BarModel"]}, "architectures ['FooModel', 'BarModel']"),
        ({"architectures": [], "model_type": "foo"}, "no architectures and model_type 'foo'"),
        ({"architectures": ..., "model_type": "foo"}, "no architectures and model_type 'foo'"),
        ({"architectures": ..., "model_type": ...}, "no architectures and model_type None"),
    ],
)
def test_e08_an_unknown_architecture_says_what_was_found_and_what_is_supported(
    changes: dict[str, Any], found: str, model: Path
) -> None:
    error = refusal(change(model, **changes))
    assert error.code == "unsupported_architecture"
    assert found in str(error).splitlines()[0]
    for name in ("LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"):
        assert name in error.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["FooModel", "LlamaForCausalLM"]},
        {"architectures": []},
        {"architectures": ...},
        {"architectures": None},
        {"model_type": ...},
    ],
)
def test_e08_one_of_two_names_is_enough(changes: dict[str, Any], model: Path) -> None:
    assert inspect(change(model, **changes)).architecture == "LlamaForCausalLM"


def test_e08_a_missing_config(model: Path) -> None:
    (model / "config.json").unlink()
    error = refusal(model)
    assert "no config.json" in str(error).splitlines()[0]
    assert error.code == "missing_file"


@pytest.mark.parametrize("text", ["{", "[]", '"llama"', "", "\xff", "[" * 100_000])
def test_e08_a_config_that_is_no_json_object(text: str, model: Path) -> None:
    (model / "config.json").write_bytes(text.encode("latin-1"))
    error = refusal(model)
    assert error.code == "bad_config"
    assert str(model / "config.json") in str(error).splitlines()[0]


def test_e08_a_path_that_does_not_exist(tmp_path: Path) -> None:
    assert "no such file or directory" in str(refusal(tmp_path / "none"))


def test_e08_an_unknown_quantisation_is_named(model: Path) -> None:
    error = refusal(change(model, quantization_config={"quant_method": "foo", "bits": 4}))
    assert "quant_method 'foo'" in str(error).splitlines()[0]
    assert error.code == "unsupported_quantization"


def test_code_that_comes_with_a_model_is_never_run(model: Path) -> None:
    (model / "modeling_evil.py").write_text("raise SystemExit(3)")
    error = refusal(change(model, auto_map={"AutoModelForCausalLM": "modeling_evil.Model"}))
    assert "auto_map" in str(error).splitlines()[0]
    assert error.code == "remote_code"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size is 0, not a positive integer"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 2**40}, "hidden_size is 1099511627776"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers is 2147483647"),
        ({"head_dim": 2**31 - 2}, "head_dim is 2147483646"),
        ({"hidden_size": 2**30, "head_dim": ...}, "hidden_size is 1073741824"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, not a divisor of 4"),
        ({"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": ...}, "a multiple of 6"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, not a positive number"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish', not one of silu"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes', not true or false"),
        ({"max_position_embeddings": ...}, "max_position_embeddings is missing"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
    ],
)
def test_a_config_that_cannot_be_is_refused_naming_the_key(
    changes: dict[str, Any], named: str, model: Path
) -> None:
    error = refusal(change(model, **changes))
    assert named in str(error).splitlines()[0]
    assert "config.json" in str(error)
    assert error.code == "bad_config"


def test_facts(model: Path) -> None:
    info = inspect(model)
    assert (info.name, info.path, info.format) == ("m", str(model), "safetensors")
    assert (info.layers, info.hidden_size, info.heads, info.kv_heads) == (3, 64, 4, 2)
    assert (info.head_dim, info.vocab_size, info.max_position) == (24, 97, 128)
    assert info.parameters == sum(t.size for t in golden_models.tensors("llama").values())
    assert info.kv_bytes_per_token == 4 * 2 * 3 * 2 * 24
    assert info.weight_bytes == 4 * info.parameters
    assert info.quantization == "float32"
    assert (info.bos_token_id, info.eos_token_ids) == (3, (5, 7))


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
@pytest.mark.parametrize("value", ["float16", "bfloat16", "float32", None, "torch.float16"])
def test_b08_the_weights_say_their_dtype_whatever_the_config_says(
    key: str, value: str | None, model: Path
) -> None:
    changes = {"torch_dtype": ..., key: value}
    assert inspect(change(model, **changes)).quantization == "float32"


def test_the_context_is_bounded_by_what_the_model_is_made_for(model: Path) -> None:
    assert open_model(model, 128).spec == open_model(model).spec
    for context in (129, 0):
        with pytest.raises(ModelError, match="made for 128") as caught:
            open_model(model, context)
        assert caught.value.code == "context_too_long"
        assert "--max-model-len 128" in caught.value.hint


def test_dynamic_rope_is_fixed_by_the_context(model: Path) -> None:
    change(model, rope_scaling={"type": "dynamic", "factor": 4.0})
    short, long = (open_model(model, n).spec.layers[0].rope for n in (100, 512))
    assert short != long
    assert open_model(model, 128).spec.layers[0].rope == short


def test_a_family_whose_reading_fails_is_not_called_unsupported() -> None:
    """The cause comes through as it is; only an unknown name is 'not supported'."""

    def broken(fields: Fields, divisors: tuple[float, ...]) -> Any:
        raise ImportError("libfoo is missing")

    family = families.Family("LlamaForCausalLM", "llama", None, broken)
    found = families.find_family({"architectures": ["LlamaForCausalLM"]}, "c", [family])
    with pytest.raises(ImportError, match="libfoo"):
        found.read(Fields({}, "c"), ())


def tokenizer(path: Path, vocab: int, added: list[int]) -> None:
    (path / "tokenizer.json").write_text(
        json.dumps(
            {
                "model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(vocab)}},
                "added_tokens": [{"id": i, "content": f"<{i}>"} for i in added],
            }
        )
    )


def test_e08_a_tokenizer_larger_than_the_embedding_is_refused(model: Path) -> None:
    tokenizer(model, 98, [])
    error = refusal(model)
    assert error.code == "vocabulary_mismatch"
    assert "98 tokens" in str(error) and "97 rows" in str(error)


def test_added_tokens_beyond_the_embedding_earn_a_warning(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer(model, 90, [90, 91, 97])
    with caplog.at_level(logging.WARNING):
        assert open_model(model).spec.vocab_used == 92
    assert "1 added tokens (from id 97)" in caplog.text


def test_rows_without_a_token_are_padding(model: Path) -> None:
    assert open_model(model).spec.vocab_used == 97
    tokenizer(model, 80, [84])
    spec = open_model(model).spec
    assert (spec.vocab, spec.vocab_used) == (97, 85)


def test_several_gguf_files_in_a_directory_are_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    error = refusal(tmp_path)
    assert error.code == "ambiguous_model"
    assert "a.gguf, b.gguf" in str(error)


# generation_config.json


def generation(path: Path, **values: Any) -> dict[str, Any]:
    (path / "generation_config.json").write_text(json.dumps(values))
    return inspect(path).generation


def test_e07_defaults_of_the_file_come_under_our_names(model: Path) -> None:
    assert inspect(model).generation == {}
    found = generation(
        model,
        temperature=0.1,
        top_p=0.8,
        top_k=5,
        repetition_penalty=1.1,
        eos_token_id=[7, 9],
        transformers_version="5",
        max_new_tokens=3,
        min_p=None,
    )
    assert found == {"temperature": 0.1, "top_p": 0.8, "top_k": 5, "repetition_penalty": 1.1}


def test_e07_do_sample_false_is_greedy(model: Path) -> None:
    assert generation(model, do_sample=False, temperature=0.7)["temperature"] == 0.0
    assert generation(model, do_sample=True, temperature=0.7)["temperature"] == 0.7
    assert generation(model, do_sample=None, temperature=0.7)["temperature"] == 0.7


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": True}, "top_k is True"),
        ({"top_p": [0.5]}, "top_p is"),
        ({"do_sample": "no"}, "do_sample is 'no'"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [1, None]}, "eos_token_id is"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
    ],
)
def test_e07_values_that_are_no_numbers_are_refused(
    values: dict[str, Any], named: str, model: Path
) -> None:
    (model / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"generation_config\.json") as caught:
        inspect(model)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        (5, 7, (5, 7)),
        ([5, 7], [7, 9], (5, 7, 9)),
        (..., 9, (9,)),
        (None, None, ()),
        (5, ..., (5,)),
        ([5, 1000], ..., (5,)),
    ],
)
def test_e07_all_ends_count(config: Any, file: Any, expected: tuple[int, ...], model: Path) -> None:
    change(model, eos_token_id=config)
    if file is not ...:
        generation(model, eos_token_id=file)
    assert inspect(model).eos_token_ids == expected


@pytest.mark.parametrize("spelled", ["</s>", {"content": "</s>", "lstrip": False}])
def test_e07_the_tokenizers_own_end_counts_too(spelled: Any, model: Path) -> None:
    settings = {"eos_token": spelled, "added_tokens_decoder": {"11": {"content": "</s>"}}}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    assert inspect(model).eos_token_ids == (5, 7, 11)
    del settings["added_tokens_decoder"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    assert inspect(model).eos_token_ids == (5, 7)
    whole = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 13, "content": "</s>"}]}
    (model / "tokenizer.json").write_text(json.dumps(whole))
    assert inspect(model).eos_token_ids == (5, 7, 13)
