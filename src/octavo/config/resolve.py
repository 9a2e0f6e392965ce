"""Resolving the options: default < file < environment < flag, each value with its source.

Owns: the layers, other spellings, unknown names and the messages about them.
Does not know: how a single value is read (kinds), or what is derived later.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.config import vllm_names
from octavo.config.options import Option, Options, Source, table

ENV_PREFIX = "OCTAVO_"
OTHER_VARIABLES = {"OCTAVO_CONFIG", "OCTAVO_CACHE", "OCTAVO_ISA"}
"""Variables with our prefix that are not options: the file of options, the default cache directory
of models, the kernels' choice of an instruction set."""


class ConfigError(ValueError):
    """An option is unknown or its value is not acceptable. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.field = field


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Options:
    """The options, from all layers. `flags` maps names to values, None meaning not given; `env`
    None means the process's own. `config` None falls back to OCTAVO_CONFIG.

    Raises ConfigError naming the field, the value, the limit and the layer it came from.
    """
    environment = os.environ if env is None else env
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    path = config or environment.get("OCTAVO_CONFIG")
    layers = [
        _file_layer(Path(path)) if path else {},
        _env_layer(environment),
        _flag_layer(flags or {}),
    ]
    for layer in layers:
        for option, (raw, source) in layer.items():
            values[option.name] = _parse(option, raw, source)
            sources[option.name] = source
    return Options(**values, sources=sources)


Layer = dict[Option, tuple[Any, Source]]


def _file_layer(path: Path) -> Layer:
    layer: Layer = {}
    for key, raw in _read(path).items():
        name = str(key).replace("-", "_")
        option = _by_name().get(name) or _unknown(str(key), f"in {path}", _by_name())
        if raw is not None:
            _put(layer, option, raw, Source("file", str(path)), name)
    return layer


def _env_layer(environment: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for variable in sorted(environment):
        if not variable.startswith(ENV_PREFIX) or variable in OTHER_VARIABLES:
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        option = _by_name().get(name)
        if option is None:
            known = {ENV_PREFIX + known.upper() for known in _by_name()} | OTHER_VARIABLES
            option = _unknown(variable, "in the environment", known)
        _put(layer, option, environment[variable], Source("env", variable), variable)
    return layer


def _flag_layer(flags: Mapping[str, Any]) -> Layer:
    layer: Layer = {}
    for key, raw in flags.items():
        name = key.replace("-", "_")
        option = _by_name().get(name) or _unknown(key, "", _by_name())
        if raw is not None:
            _put(layer, option, raw, Source("flag", "--" + name.replace("_", "-")), name)
    return layer


def _put(layer: Layer, option: Option, raw: Any, source: Source, spelling: str) -> None:
    if option in layer:
        raise ConfigError(
            f"{option.name} is given twice in one place ({spelling} is another spelling of it)",
            "give it once",
            option.name,
        )
    layer[option] = (raw, source)


def _parse(option: Option, raw: Any, source: Source) -> Any:
    try:
        return option.kind.parse(raw)
    except ValueError as error:
        shown = "the value given" if option.secret else repr(raw)
        raise ConfigError(
            f"{option.name} {error}, not {shown}", f"it came from {source}", option.name
        ) from None


def _unknown(key: str, place: str, known: Mapping[str, Any] | set[str]) -> Option:
    where = f" {place}" if place else ""
    refused = vllm_names.refusal(key.removeprefix(ENV_PREFIX).lower())
    if refused:
        raise ConfigError(f"{refused[0]}{where}", refused[1], key)
    near = nearest(key.replace("-", "_"), known)
    raise ConfigError(f"unknown option {key}{where}", f"did you mean {near}?" if near else "", key)


def nearest(name: str, known: Mapping[str, Any] | set[str]) -> str | None:
    """The known name that is most like `name`, if any is."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _by_name() -> dict[str, Option]:
    return {name: option for option in table() for name in (option.name, *option.aliases)}


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the file of options {path}: {error}") from None
    suffix = path.suffix.lower()
    if suffix == ".toml":
        import tomllib

        try:
            data: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
    elif suffix in {".yaml", ".yml"}:
        import yaml

        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not valid YAML: {error}") from None
    else:
        raise ConfigError(
            f"the file of options {path} is neither .toml nor .yaml", "rename it by its format"
        )
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold a table of options, one a line")
    return data
