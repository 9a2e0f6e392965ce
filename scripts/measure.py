"""Measures what a user feels first: help, start to first token, idle CPU, size of the environment.

Prints a table; medians of several runs. Run by `make measure`; nothing here decides a test.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

RUNS = 5
ENVIRONMENT = Path(sys.prefix)


def help_seconds() -> float:
    command = [sys.executable, "-m", "octavo", "--help"]
    return _timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def _timed(action: object) -> float:
    begun = time.perf_counter()
    action()  # type: ignore[operator]
    return time.perf_counter() - begun


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`octavo serve` as a subprocess, from the command to its end."""

    def __init__(self) -> None:
        self.port = free_port()
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "serve", "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def first_token_seconds(self) -> float:
        """From the command to the first streamed piece of text, asking from the beginning on."""
        body = {
            "model": "smollm2-135m",
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 8,
            "stream": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    for line in response:
                        if b'"content":"' in line and b'"content":""' not in line:
                            return time.perf_counter() - self.begun
            except OSError:
                time.sleep(0.01)
        raise SystemExit(f"octavo serve ended with {self.process.returncode}")

    def idle_share(self, seconds: float = 10.0) -> float:
        """CPU time of the server's processes over wall time while nothing is asked."""
        time.sleep(2.0)
        before = _tree_ticks(self.process.pid)
        time.sleep(seconds)
        return (_tree_ticks(self.process.pid) - before) / os.sysconf("SC_CLK_TCK") / seconds

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def _tree_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return ticks + sum(_tree_ticks(int(child)) for child in children)


def main() -> None:
    rows = [("octavo --help, s", statistics.median(help_seconds() for _ in range(RUNS)))]
    starts = []
    for run in range(RUNS):
        server = Server()
        starts.append(server.first_token_seconds())
        if run == RUNS - 1:
            rows.append(("idle CPU, %", 100 * server.idle_share()))
        server.stop()
    rows.insert(1, ("serve to first token, s", statistics.median(starts)))
    size = sum(f.stat().st_blocks * 512 for f in ENVIRONMENT.rglob("*") if not f.is_symlink())
    rows.append(("environment, MB", size / 1e6))
    for name, value in rows:
        print(f"{name:28} {value:8.2f}")


if __name__ == "__main__":
    main()
