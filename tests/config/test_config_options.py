"""The table of options and its layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import ConfigError, Options, Source, resolve, table
from octavo.config.kinds import Bytes
from octavo.config.vllm_names import HINTS, refusal

VLLM_OPTIONS = Path(__file__).parents[3] / "shared/data/vllm_names/options.txt"


def test_defaults_are_the_tables_and_pass_their_own_checks() -> None:
    options = resolve(env={})
    assert options == Options()
    for row in table():
        if row.default is not None and row.default != ():
            assert row.kind.parse(row.default) == row.default, row.name
        assert options.source(row.name) == Source("default")


def test_each_layer_overrides_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "octavo.toml"
    file.write_text('port = 1\nhost = "a"\nlog-level = "debug"\nmax_num_seqs = 3\n')
    env = {"OCTAVO_PORT": "2", "OCTAVO_HOST": "b"}
    options = resolve({"port": "3", "model": None}, config=file, env=env)
    assert (options.port, options.host, options.log_level) == (3, "b", "debug")
    assert options.max_num_seqs == 3
    assert options.source("port") == Source("flag", "--port")
    assert options.source("host") == Source("env", "OCTAVO_HOST")
    assert options.source("log_level") == Source("file", str(file))
    assert options.source("model").kind == "default"


def test_yaml_and_the_environment_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text("served_model_name: [x, y]\nkv_memory: 2GiB\nchat_template: null\n")
    options = resolve(env={"OCTAVO_CONFIG": str(file)})
    assert options.served_model_name == ("x", "y")
    assert options.kv_memory == 2 * 1024**3
    assert options.chat_template is None


def test_derived_values_remember_why() -> None:
    options = resolve({"port": 5}, env={}).derive("affinity 2, cgroup quota none", threads=2)
    assert options.threads == 2
    assert str(options.source("threads")) == "derived (affinity 2, cgroup quota none)"
    assert options.source("port").kind == "flag"


@pytest.mark.parametrize(
    ("given_as", "where", "near"),
    [("file", "prot = 1", "port"), ("env", "OCTAVO_PROT", "OCTAVO_PORT"), ("flag", "prot", "port")],
)
def test_an_unknown_name_is_an_error_with_the_nearest(
    tmp_path: Path, given_as: str, where: str, near: str
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(where if given_as == "file" else "")
    with pytest.raises(ConfigError) as caught:
        resolve(
            {"prot": 1} if given_as == "flag" else {},
            config=file,
            env={"OCTAVO_PROT": "1"} if given_as == "env" else {},
        )
    assert "prot" in str(caught.value).lower()
    assert caught.value.hint == f"did you mean {near}?"


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("port", 70000, "from 0 to 65535"),
        ("port", True, "whole number"),
        ("port", "eight", "whole number"),
        ("block_size", 0, "from 1 to 1024"),
        ("memory_utilization", 1.2, "above 0 and at most 1"),
        ("memory_utilization", 0, "above 0 and at most 1"),
        ("memory_utilization", "nan", "above 0 and at most 1"),
        ("memory_utilization", "lots", "above 0 and at most 1"),
        ("kv_memory", "4 parsecs", "number of bytes"),
        ("kv_memory", "0", "from 1"),
        ("scheduling_policy", "lottery", "one of fcfs, priority, fair"),
        ("batch_share", 51, "from 0 to 50"),
        ("target_tpot_ms", "fast", "must be a number above 0 and at most"),
        ("target_tpot_ms", 0, "or on"),
        ("offline", "maybe", "true or false"),
        ("max_model_len", -1, "from 1"),
        ("served_model_name", 3, "list of texts"),
        ("host", " ", "not empty"),
    ],
)
def test_values_out_of_range_name_field_value_and_limit(
    name: str, value: object, limit: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({name: value}, env={})
    message = str(caught.value)
    assert message.startswith(name) and limit in message and repr(value) in message
    assert "--" + name.replace("_", "-") in caught.value.hint


def test_a_refused_key_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"api_key": 12345}, env={})
    assert "12345" not in str(caught.value)


def test_other_spellings_work_everywhere_but_not_twice_in_one_layer() -> None:
    options = resolve({"max_num_batches": 7, "gpu_memory_utilization": "0.5"}, env={})
    assert (options.max_num_seqs, options.memory_utilization) == (7, 0.5)
    assert resolve(env={"OCTAVO_GPU_MEMORY_UTILIZATION": "0.25"}).memory_utilization == 0.25
    with pytest.raises(ConfigError, match="given twice"):
        resolve({"max_num_batches": 7, "max_num_seqs": 8}, env={})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "port = ", "not valid TOML"),
        ("a.yaml", "port: [", "not valid YAML"),
        ("a.yaml", "- 1", "table of options"),
        ("a.ini", "port=1", "neither .toml nor .yaml"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        resolve(config=file, env={})
    with pytest.raises(ConfigError, match="cannot read"):
        resolve(config=tmp_path / "absent.toml", env={})


def test_vllm_options_are_known_or_refused_by_name() -> None:
    if not VLLM_OPTIONS.exists():
        pytest.skip("the list of vLLM's options is not at hand")
    ours = {name for row in table() for name in (row.name, *row.aliases)}
    ours |= {"help", "config", "json_arg"}
    for line in VLLM_OPTIONS.read_text().split():
        key = line.removeprefix("--").replace("-", "_").removeprefix("no_")
        assert (key in ours) != (refusal(line) is not None), line


def test_hints_never_speak_of_options_that_exist() -> None:
    ours = {name for row in table() for name in (row.name, *row.aliases)}
    assert not ours & set(HINTS)
    with pytest.raises(ConfigError) as caught:
        resolve({"num_gpu_blocks_override": 3}, env={})
    assert "vLLM's --num-gpu-blocks-override is not supported" in str(caught.value)
    assert "--kv-tokens" in caught.value.hint


@given(st.integers(1, 2**50), st.sampled_from(["", "B", "K", "KiB", "kb", "M", "GiB", "gb"]))
def test_bytes_scale_by_their_unit(number: int, unit: str) -> None:
    scale = {"": 1, "b": 1, "k": 1024, "kib": 1024, "kb": 1000}
    scale |= {"m": 1024**2, "gib": 1024**3, "gb": 10**9}
    assert Bytes().parse(f"{number}{unit}") == number * scale[unit.lower()]


def test_a_target_switched_on_without_a_value() -> None:
    assert resolve({"target_tpot_ms": "on"}, env={}).target_tpot_ms == 200.0
    assert resolve({}, env={"OCTAVO_TARGET_TPOT_MS": "35.5"}).target_tpot_ms == 35.5
    assert resolve({}, env={}).target_tpot_ms is None
