"""The examples for systemd and Kubernetes, and the page on operations, agree with the code."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo.cli.errors import FAILURE, INTERRUPTED, USAGE
from octavo.config import resolve, table
from octavo.server.app import routes
from octavo.server.auth import OPEN_PATHS
from octavo.server.lifecycle import ENGINE_FAILED
from octavo.server.metrics import EngineView, Metrics, metric_reference
from octavo.server.watchdog import API_STUCK

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATHS = {route.path for route in routes()}
ROWS = {row.flag: row for row in table()}


def options_of(words: list[str]) -> dict[str, str]:
    """Flags with their values, `--flag value` or `--flag=value`; each must exist."""
    found = {}
    rest = [part for word in words for part in word.split("=", 1)]
    for flag, value in zip(rest[::2], rest[1::2], strict=True):
        assert flag in ROWS, flag
        found[ROWS[flag].name] = value
    return found


@pytest.fixture(scope="module")
def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DOCS / "examples" / "octavo.service").read_text())
    return parser


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    parts = yaml.safe_load_all((DOCS / "examples" / "kubernetes.yaml").read_text())
    return {part["kind"]: part for part in parts}


def container(manifest: dict[str, Any]) -> Any:
    (one,) = manifest["Deployment"]["spec"]["template"]["spec"]["containers"]
    return one


def test_the_units_command_is_one_that_is_understood(unit: ConfigParser) -> None:
    program, command, model, *flags = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/octavo") and command == "serve" and not model.startswith("-")
    options = resolve({**options_of(flags), "model": model})
    assert options.api_key_file is not None, "the address is public"
    stop = float(unit["Service"]["TimeoutStopSec"])
    assert stop > options.shutdown_timeout + 10, "draining and the answers' way out come first"
    # The engine ignores the signal, and the rest is killed only once the server has ended.
    assert (unit["Service"]["KillSignal"], unit["Service"]["KillMode"]) == ("SIGTERM", "mixed")
    directory = "/var/lib/" + unit["Service"]["StateDirectory"]
    assert options.crash_dir is not None and options.crash_dir.startswith(directory)


def test_the_unit_restarts_after_what_a_restart_mends(unit: ConfigParser) -> None:
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == {USAGE}
    assert not prevented & {FAILURE, ENGINE_FAILED, API_STUCK}


def test_the_containers_command_is_one_that_is_understood(manifest: dict[str, Any]) -> None:
    one = container(manifest)
    program, command, model = one["command"]
    assert (program, command) == ("octavo", "serve")
    options = resolve({**options_of(one["args"]), "model": model})
    assert [port["containerPort"] for port in one["ports"]] == [options.port]
    assert options.host == "0.0.0.0", "probes come from outside"
    names = {entry["name"] for entry in one["env"]}
    assert names <= {row.env for row in table()} and "OCTAVO_API_KEY" in names
    pod = manifest["Deployment"]["spec"]["template"]["spec"]
    pause = int(one["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + options.shutdown_timeout + 10


def test_the_probes_ask_routes_that_are_open_and_mean_that(manifest: dict[str, Any]) -> None:
    one = container(manifest)
    ports = {port["name"] for port in one["ports"]}
    wanted = {"livenessProbe": "/health", "startupProbe": "/health", "readinessProbe": "/ready"}
    for probe, path in wanted.items():
        get = one[probe]["httpGet"]
        assert get["path"] == path and path in PATHS & OPEN_PATHS
        assert get["port"] in ports
    assert one["livenessProbe"]["failureThreshold"] > 1, "one lost packet is no death"


def test_the_service_finds_the_pods(manifest: dict[str, Any]) -> None:
    spec, template = manifest["Service"]["spec"], manifest["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items()
    assert manifest["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert spec["ports"][0]["targetPort"] in {port["name"] for port in container(manifest)["ports"]}


def test_exit_codes_are_those_of_the_code() -> None:
    text = (DOCS / "operations.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)}
    assert codes == {0, FAILURE, USAGE, ENGINE_FAILED, API_STUCK, INTERRUPTED}


def test_routes_and_flags_that_the_page_names_exist() -> None:
    text = (DOCS / "operations.md").read_text()
    named = set(re.findall(r"`(?:POST )?(/[a-z]+)[?`]", text))
    assert named == {"/health", "/ready", "/drain", "/pause", "/resume"} and named <= PATHS
    for flag in re.findall(r"`(--[a-z-]+)", text):
        assert flag in ROWS, flag


def queries() -> list[str]:
    board = json.loads((DOCS / "examples" / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_f05_every_metric_of_the_dashboard_is_served() -> None:
    """Against a scrape, with the suffixes that it has; metrics with labels that have no value yet
    are listed by name."""
    metrics = Metrics("m", lambda: EngineView(None, 0, True))
    scrape = metrics.scrape()[0].decode()
    listed = set(re.findall(r"^# TYPE (\S+) counter", scrape, re.M))
    served = set(re.findall(r"^(octavo:\w+)", scrape, re.M)) | listed
    named = {name for query in queries() for name in re.findall(r"octavo:\w+", query)}
    assert len(named) > 15
    assert named <= served, named - served


def test_f05_shares_are_averaged_and_counters_are_rates() -> None:
    """So that the board is right for several instances, too."""
    kinds = {name: kind for name, kind, _ in metric_reference()}
    shares = {"octavo:kv_cache_usage_perc", "octavo:kv_slots_filled_ratio", "octavo:kv_share_ratio"}
    for query in queries():
        for name in re.findall(r"octavo:\w+", query):
            kind = kinds.get(name) or kinds[name.removesuffix("_bucket")]
            if kind == "counter":
                assert re.search(rf"(rate|increase)\({name}\[", query), query
            elif kind == "histogram":
                assert query.startswith("histogram_quantile(") and f"rate({name}[" in query
            if name in shares:
                assert query.startswith("avg"), query
        assert "model_name" not in query, "one board for every model"
