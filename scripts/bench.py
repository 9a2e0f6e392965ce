"""Runs the benchmarks of `make bench`: roofline, then the workloads over HTTP, then a baseline.

    python scripts/bench.py --workloads FILE [--model NAME] [--baseline] [--against URL] ...

Starts `octavo serve` on a free port, and stops it; writes one JSON file and prints tables. What is
not there (a file of workloads, the oracle's environment) is left out, and said to be. Flags that
this script does not know are passed to `octavo serve` and `octavo bench roofline`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / ".venv-oracle/bin/python"
STATIC_GENERATE = ROOT / "tests/oracle/static_generate.py"
OCTAVO = [sys.executable, "-m", "octavo"]
READY_SECONDS = 120
INTERRUPTED = 130


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's own flags, and the rest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", type=Path, help="a file of workloads")
    parser.add_argument("--only", action="append", default=[], help="a workload of it; repeatable")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; medians")
    parser.add_argument("--model", help="the default model if left out")
    parser.add_argument("--batch", type=int, action="append", help="roofline; 1, 8 and 64")
    parser.add_argument("--context", type=int, default=128, help="roofline: tokens of a prompt")
    parser.add_argument("--against", metavar="URL", help="a second server: both in turns")
    parser.add_argument("--baseline", action="store_true", help="transformers' static batches too")
    parser.add_argument("--baseline-dtype", default="bfloat16", help="bfloat16 or float32")
    parser.add_argument("--baseline-seconds", type=float, default=300, help="for each workload")
    parser.add_argument("--output", type=Path, default=Path("bench-results.json"))
    return parser.parse_known_args(arguments)


def main(arguments: list[str]) -> int:
    asked, rest = parse(arguments)
    model = [] if asked.model is None else ["--model", asked.model]
    results: dict[str, Any] = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    try:
        results["roofline"] = roofline(asked, [*model, *rest])
        save(asked.output, results)
        if asked.workloads is None or not asked.workloads.is_file():
            say(f"the workloads are left out: there is no file {asked.workloads}")
            return 0
        results["serve"], code = serve(asked, [*model, *rest])
        save(asked.output, results)
        if asked.baseline:
            results["baseline"] = baseline(asked)
            save(asked.output, results)
            compare(results)
    except KeyboardInterrupt:
        say(f"interrupted; {asked.output} holds what was done")
        return INTERRUPTED
    say(f"written: {asked.output}")
    return code


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def roofline(asked: argparse.Namespace, rest: list[str]) -> Any:
    """Before the server starts, so that nothing else computes."""
    batches = [f"--batch={batch}" for batch in asked.batch or (1, 8, 64)]
    command = [
        *OCTAVO,
        "bench",
        "roofline",
        "--json",
        f"--context={asked.context}",
        *batches,
        *rest,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def serve(asked: argparse.Namespace, rest: list[str]) -> tuple[Any, int]:
    """The workloads over HTTP: the results, and the exit code of the client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "serve.json"
        with subprocess.Popen(
            [*OCTAVO, "serve", f"--port={port}", "--log-level=warning", *rest]
        ) as server:
            try:
                wait_ready(server, port)
                command = [*OCTAVO, "bench", "serve", f"--url=127.0.0.1:{port}"]
                command += [f"--workload={asked.workloads}", f"--repeats={asked.repeats}"]
                command += [f"--only={name}" for name in asked.only]
                command += [f"--output={file}", "--timeout=3600"]
                command += [] if asked.against is None else [f"--against={asked.against}"]
                code = subprocess.run(command).returncode
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait()
        results = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return results, code


def wait_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"octavo serve ended with {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"octavo serve was not ready within {READY_SECONDS} s")


def baseline(asked: argparse.Namespace) -> Any:
    """transformers' `generate` on the same workloads, in the oracle's environment."""
    if not ORACLE.exists():
        say("the baseline is left out: make oracle makes its environment, .venv-oracle")
        return None
    pulled = [*OCTAVO, "pull", *([asked.model] if asked.model else [])]
    model = subprocess.run(pulled, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
    command = [str(ORACLE), str(STATIC_GENERATE), "--model", model]
    command += ["--workloads", str(asked.workloads), "--dtype", asked.baseline_dtype]
    command += ["--seconds", str(asked.baseline_seconds), "--repeats", str(asked.repeats)]
    for name in asked.only:
        command += ["--only", name]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(done.stdout)


def compare(results: dict[str, Any]) -> None:
    """Output tokens a second, ours over the baseline's."""
    ours = (results.get("serve") or {}).get("medians", {})
    theirs = (results.get("baseline") or {}).get("workloads", {})
    for name in ours:
        mine = ours[name]["server"]["output_tokens_per_s"]
        rate = (theirs.get(name) or {}).get("output_tokens_per_s")
        told = "no result" if rate is None else f"{rate:.1f} tokens/s, ratio {mine / rate:.2f}"
        print(f"{name}: octavo {mine:.1f} tokens/s; transformers' static batch {told}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
