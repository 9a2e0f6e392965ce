"""What cannot run is refused within a second, before weights are read, naming what would run."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest

from octavo.cli import check, main
from octavo.config import resolve
from octavo.deploy import find_model, prepare
from octavo.model import pickled, tokenizer_files
from octavo.model.errors import ModelError
from octavo.model.mapped import MappedFiles
from octavo.model.registry import inspect
from support import golden_models
from support.gguf_files import convert, header, tensor
from support.tiny_models import write_tiny_random


@pytest.fixture(autouse=True)
def within_a_second_and_unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test of this file: no weights are read, and it takes no second of the processor."""

    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(MappedFiles, "view", read)
    began = time.process_time()
    yield
    assert time.process_time() - began < 1.0


def refused(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        inspect(path)
    return caught.value


def config(path: Path, **values: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"vocab_size": 100, **values}))
    return path


@pytest.mark.parametrize(
    ("architecture", "nearest"),
    [
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("LlamaModel", "LlamaForCausalLM"),
        ("Qwen2_5ForCausalLM", "Qwen2ForCausalLM"),
        ("MinistralForCausalLM", "MistralForCausalLM"),
    ],
)
def test_e08_the_nearest_architecture_is_named(
    architecture: str, nearest: str, tmp_path: Path
) -> None:
    error = refused(config(tmp_path / "m", architectures=[architecture], model_type="x"))
    assert error.code == "unsupported_architecture"
    assert f"The nearest that is supported: {nearest}" in error.hint
    assert f"{[architecture]}" in str(error).splitlines()[0]
    assert "a newer version of Octavo" in error.hint


def test_e08_what_resembles_nothing_has_no_nearest(tmp_path: Path) -> None:
    error = refused(config(tmp_path / "m", architectures=["XyzzyForCausalLM"], model_type="xyzzy"))
    assert "nearest" not in error.hint and "LlamaForCausalLM" in error.hint


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "an encoder"),
        ({"architectures": ["RobertaForMaskedLM"], "model_type": "roberta"}, "an encoder"),
        ({"architectures": ["FooForSequenceClassification"], "model_type": "foo"}, "an encoder"),
        ({"architectures": [], "model_type": "nomic_bert"}, "an encoder"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "encoder-decoder"),
        (
            {"architectures": ["FooForConditionalGeneration"], "is_encoder_decoder": True},
            "encoder-decoder",
        ),
        (
            {
                "architectures": ["LlavaForConditionalGeneration"],
                "model_type": "llava",
                "text_config": {"model_type": "llama"},
                "vision_config": {"hidden_size": 64},
            },
            "images or sound",
        ),
        ({"architectures": ["Qwen2VLForConditionalGeneration"]}, "images or sound"),
        (
            {"architectures": ["LlavaLlamaForCausalLM"], "mm_vision_tower": "openai/clip"},
            "images or sound",
        ),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "keeps a state"),
    ],
)
def test_e08_other_kinds_of_models_are_told_apart(
    values: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    error = refused(config(tmp_path / "m", **values))
    assert error.code == "unsupported_architecture"
    assert kind in str(error).splitlines()[0]
    if kind == "images or sound":
        assert "The text part of such a checkpoint cannot be served alone" in error.hint


def test_e08_a_text_model_beside_images_is_pointed_at(tmp_path: Path) -> None:
    path = config(tmp_path / "m", architectures=["Qwen2VLForConditionalGeneration"])
    assert "The nearest that is supported: Qwen2ForCausalLM" in refused(path).hint


def test_e08_two_architectures_of_which_none_is_known(tmp_path: Path) -> None:
    names = ["FooForCausalLM", "BarForCausalLM"]
    error = refused(config(tmp_path / "m", architectures=names))
    assert f"architectures {names}" in str(error).splitlines()[0]


@pytest.mark.parametrize("name", ["gemma9", "bert", "mamba2", "qwen2vl", "llama9"])
def test_e08_an_architecture_in_gguf(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    error = refused(path)
    first, words = str(error).splitlines()[0], {"bert": "encoder", "mamba2": "a state"}
    assert error.code == "unsupported_architecture" and repr(name) in first
    assert words.get(name, "") in first
    assert ("nearest that is supported: llama" in error.hint) == (name == "llama9")


def test_e08_a_family_that_cannot_be_imported_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of families imports them: nothing of that may end as 'not supported'."""
    assert check.__name__ in sys.modules, "so that what it imports is not counted"
    monkeypatch.setitem(sys.modules, "octavo.model.registry", None)
    with pytest.raises(SystemExit) as end:
        main(["check", str(tmp_path)])
    error = capsys.readouterr().err
    assert end.value.code == 1
    assert "octavo.model.registry" in error and "import" in error
    assert "not supported" not in error


# Weights that are not read


@pytest.fixture
def pickles(tmp_path: Path) -> Path:
    path = golden_models.write_checkpoint(tmp_path / "a model's", "mistral")
    (path / "model.safetensors").unlink()
    for name in ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"):
        (path / name).write_bytes(b"PK\x03\x04")
    (path / "training_args.bin").write_bytes(b"x")
    return path


def test_pickled_weights_come_with_the_command_that_converts_them(pickles: Path) -> None:
    error = refused(pickles)
    assert error.code == "pickled_weights"
    words = shlex.split(error.hint[error.hint.index("python -c") :])
    assert words[:2] == ["python", "-c"]
    compile(words[2], "converter", "exec")
    assert words[2] == pickled.CONVERTER
    shards = sorted(str(path) for path in pickles.glob("pytorch_model*"))
    assert words[3:] == [str(pickles / "model.safetensors"), *shards]


def test_the_converters_are_for_a_shell_too() -> None:
    for code in (pickled.CONVERTER, tokenizer_files.CONVERTER):
        compile(code, "converter", "exec")
        assert not set(code) & set('"$`\\!')


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.ckpt", "pytorch_model.bin"])
def test_pickled_files_are_known_by_their_names(name: str, tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    (path / "model.safetensors").rename(path / name)
    assert refused(path).code == "pickled_weights"
    assert refused(path / name).code == "pickled_weights"


@pytest.mark.parametrize("start", [b"PK\x03\x04rest", b"\x80\x02rest"])
def test_a_pickled_file_is_known_by_its_first_bytes(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(start)
    assert refused(tmp_path / "weights").code == "pickled_weights"


def test_the_original_format_of_llama_is_not_offered_a_conversion(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    (path / "model.safetensors").rename(path / "consolidated.00.pth")
    error = refused(path)
    assert "original format" in error.hint and "python -c" not in error.hint


def test_one_safetensors_file_alone_is_not_a_model(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    assert str(path) in refused(path / "model.safetensors").hint.split()


@pytest.mark.parametrize(
    ("kind", "told"),
    [(9, "9 (Q8_1)|nearest is Q8_0"), (28, "28 (F64)"), (99, "99, newer than this version knows")],
)
def test_e05_a_tensor_type_without_weights_is_named_with_the_nearest(
    kind: int, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(tensors=[tensor("blk.0.attn_q.weight", (32, 2), kind=kind)]))
    error = refused(path)
    assert error.code == "unsupported_tensor_type"
    for part in told.split("|"):
        assert part in str(error)


def test_a_gguf_file_beside_a_config_is_pointed_at(tmp_path: Path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "mistral")
    (path / "model.safetensors").rename(path / "model.gguf")
    error = refused(path)
    assert error.hint == f"Name the file: {path / 'model.gguf'}"


# Tokenizers


def test_e05_a_gguf_file_without_a_tokenizer(tmp_path: Path) -> None:
    config, tensors = golden_models.CONFIGS["qwen2_bf16"], golden_models.tensors("qwen2_bf16")
    path = convert(tmp_path / "m.gguf", config, tensors)
    options = resolve({"model": str(path)}, env={})
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens is missing") as caught:
        prepare(options)
    assert caught.value.code == "missing_tokenizer"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_random(tmp_path / "tiny's")


def test_e08_a_missing_tokenizer(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    options = resolve({"model": str(tiny)}, env={})
    with pytest.raises(ModelError, match=r"no tokenizer\.json") as caught:
        prepare(options, model=find_model(options))
    assert caught.value.code == "missing_tokenizer"


@pytest.mark.parametrize("older", ["tokenizer.model", "spiece.model", "vocab.json"])
def test_e08_an_older_tokenizer_comes_with_the_command_that_converts_it(
    older: str, tiny: Path
) -> None:
    (tiny / "tokenizer.json").rename(tiny / older)
    options = resolve({"model": str(tiny)}, env={})
    with pytest.raises(ModelError, match=older) as caught:
        prepare(options)
    words = shlex.split(caught.value.hint[caught.value.hint.index("python -c") :])
    compile(words[2], "converter", "exec")
    assert words[3] == str(tiny)
