"""Whatever is done to a batch, in any order and across reopening: each row once, right counts."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.batchq.objects import LIVE, CreateBatch, Refusal, Status
from octavo.batchq.store import Result, Store
from octavo.batchq.validate import Row, read_rows

URL = "/v1/completions"
ROWS = 4


class OneBatch(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="octavo-store-"))
        self.store = Store(self.folder)
        lines = [
            json.dumps({"custom_id": f"{n}", "method": "POST", "url": URL, "body": {}})
            for n in range(ROWS)
        ]
        content = io.BytesIO("\n".join(lines).encode())
        file = self.store.files.add("", content, "in", "batch")
        self.batch_id = self.store.create("", CreateBatch(file.id, URL, "24h")).id
        self.found, _ = read_rows(self.store.input_path(self.batch_id), URL, self.store.limits)
        self.results: dict[int, int] = {}
        self.status = Status.VALIDATING

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store(self.folder)
        self.store.files.sweep()

    @rule()
    def begin(self) -> None:
        self.store.begin(self.batch_id, self.found)
        if self.status is Status.VALIDATING:
            self.status = Status.IN_PROGRESS

    @precondition(lambda self: self.status is not Status.VALIDATING)
    @rule(number=st.integers(0, ROWS - 1), status=st.sampled_from([200, 400]))
    def record(self, number: int, status: int) -> None:
        known = {row.number for row in self.store.pending(self.batch_id)}
        result = Result(self.batch_id, self.found[number], status, "r", b"%d" % status)
        assert self.store.record([result, result]) == [number in known, False]
        if number in known:
            self.results[number] = status

    @rule()
    def cancel(self) -> None:
        try:
            self.store.cancel("", self.batch_id)
            self.status = Status.CANCELLING
        except Refusal:
            assert self.status not in (Status.VALIDATING, Status.IN_PROGRESS)

    @precondition(lambda self: self.status in (Status.IN_PROGRESS, Status.CANCELLING))
    @rule()
    def finish(self) -> None:
        if self.status is Status.CANCELLING:
            self.status = Status.CANCELLED
        elif len(self.results) == ROWS:
            self.status = Status.COMPLETED
        else:
            self.status = Status.EXPIRED
        self.pending = self.store.pending(self.batch_id)
        self.store.finish(self.batch_id, self.status)
        self._check_output(self.pending)

    def _check_output(self, pending: list[Row]) -> None:
        batch = self.store.get("", self.batch_id)
        said: dict[str, list[int]] = {}
        for name in ("output", "error"):
            file_id = getattr(batch, f"{name}_file_id")
            text = self.store.files.content("", file_id).read_text() if file_id else ""
            said[name] = [int(json.loads(line)["custom_id"]) for line in text.splitlines()]
        good = sorted(n for n, status in self.results.items() if status == 200)
        bad = {n for n, status in self.results.items() if status != 200}
        assert said["output"] == good
        assert said["error"] == sorted(bad | {row.number for row in pending})

    @invariant()
    def counts_agree(self) -> None:
        batch = self.store.get("", self.batch_id)
        assert batch.status == self.status
        counts = batch.request_counts
        assert counts.completed == sum(status == 200 for status in self.results.values())
        assert counts.failed == sum(status != 200 for status in self.results.values())
        assert bool(self.store.live()) == (self.status in LIVE)


TestOneBatch = OneBatch.TestCase
TestOneBatch.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
