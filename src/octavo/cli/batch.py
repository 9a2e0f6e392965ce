"""`octavo batch run FILE`: a batch in this process, without HTTP, that can be gone on with.

Owns: the order of the steps, the folder beside the output that holds what was done, progress.
Does not know: how rows run or are kept (batchq, server.batching).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.batchq.objects import ENDPOINTS, LIVE, Batch, CreateBatch, Limits, LineError
from octavo.batchq.validate import read_rows
from octavo.cli.console import Steps
from octavo.cli.errors import USAGE, CliError
from octavo.config import Options
from octavo.deploy import Deployment, find_model, prepare, threads_for, with_threads
from octavo.machine import inspect, limit_thread_pools

FOREVER = 100 * 365 * 24 * 3600
"""Nobody waits for a window here: what was begun may be gone on with at any time."""
OWNER = ""
_SHOWN = 10
Update = Callable[[int], None]


def run(options: Options, file: str, output: str | None) -> None:
    """Raises CliError."""
    source = Path(file)
    target = Path(output) if output is not None else source.with_suffix(".out.jsonl")
    folder = target.with_name(f"{target.name}.partial")
    limits = Limits(options.batch_max_rows, 2**60, 1, options.max_body_size)
    with Steps(4) as steps:
        steps.begin(f"Checking {file}")
        endpoint, total = _check(source, limits)
        steps.begin(f"Finding the model {options.model}")
        machine = inspect()
        options = with_threads(options, machine)
        limit_thread_pools(threads_for(options).count, os.environ)
        model = find_model(options, steps.progress)
        deployment = prepare(options, model=model, machine=machine)
        for warning in deployment.warnings:
            steps.warn(warning)
        job = _Job(deployment, source, target, folder, endpoint, total)
        batch = job.run(steps)
    counts = batch.request_counts
    steps.say(f"{counts.completed} of {counts.total} rows are answered in {target}")
    if counts.failed:
        steps.warn(f"{counts.failed} rows failed; {errors_of(target)} says why")


def errors_of(target: Path) -> Path:
    """Where the rows without an answer go."""
    return target.with_suffix(".errors.jsonl")


def _check(source: Path, limits: Limits) -> tuple[str, int]:
    """The endpoint of all rows, and how many there are. Raises CliError for a faulty file."""
    faults: dict[str, list[LineError]] = {}
    for endpoint in ENDPOINTS:
        rows, errors = read_rows(source, endpoint, limits)
        if rows:
            return endpoint, len(rows)
        faults[endpoint] = errors
    # The endpoint that the lines agree with best is the one that was meant.
    errors = min(faults.values(), key=lambda found: sum("url" in str(e.param) for e in found))
    lines = [f"line {e.line}: {e.message}" if e.line else e.message for e in errors[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append("and more")
    raise CliError(f"{source} cannot be run", "\n".join(lines), USAGE)


class _Job:
    def __init__(
        self,
        deployment: Deployment,
        source: Path,
        target: Path,
        folder: Path,
        endpoint: str,
        total: int,
    ) -> None:
        from octavo.server.batching import open_folder

        self._deployment = deployment
        self._source = source
        self._target = target
        self._folder = folder
        self._endpoint = endpoint
        self._total = total
        self._store = open_folder(
            deployment.options.derive("no server", batch_max_file_size=2**60),
            folder,
            window=FOREVER,
        )

    def run(self, steps: Steps) -> Batch:
        """To the end; what was done stays in the folder until then."""
        try:
            batch = self._begin()
            before = batch.request_counts.completed + batch.request_counts.failed
            if before:
                steps.say(f"      {before} of {self._total} rows were done before")
            if batch.status in LIVE:
                import uvloop

                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    batch = runner.run(self._run(batch, before, steps))
            for file_id, place in (
                (batch.output_file_id, self._target),
                (batch.error_file_id, errors_of(self._target)),
            ):
                self._deliver(file_id, place)
        except (KeyboardInterrupt, asyncio.CancelledError):
            steps.say(f"interrupted: the same command goes on (from {self._folder})")
            raise KeyboardInterrupt from None
        finally:
            self._store.close()
        shutil.rmtree(self._folder)
        return batch

    def _begin(self) -> Batch:
        """The batch of the folder, which must be of the same input and model, or a new one."""
        with self._source.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        marks = {"input": digest, "model": str(self._deployment.options.model)[-512:]}
        found, _ = self._store.page(OWNER, None, 1)
        if found:
            for name, value in marks.items():
                if (found[0].metadata or {}).get(name) != value:
                    raise CliError(
                        f"{self._folder} holds a run that was begun with another {name}",
                        "delete that folder to begin anew, or choose another --output",
                        USAGE,
                    )
            return found[0]
        with self._source.open("rb") as content:
            file = self._store.files.add(OWNER, content, self._source.name, "batch")
        return self._store.create(OWNER, CreateBatch(file.id, self._endpoint, "24h", marks))

    async def _run(self, batch: Batch, before: int, steps: Steps) -> Batch:
        from octavo.engine.client import AsyncEngine
        from octavo.server.app import build_app
        from octavo.server.batching import Batching
        from octavo.server.serving import build_serving

        plan = self._deployment
        steps.begin("Loading the weights")
        engine = AsyncEngine(
            plan.engine,
            watchdog_timeout=plan.options.watchdog_timeout,
            loading=lambda done, total: steps.progress("Packing weights", done, total),
        )
        serving = build_serving(plan.options, plan.model, plan.engine, plan.generation, engine)
        changed = asyncio.Event()
        in_flight = plan.options.batch_max_in_flight
        batching = Batching(self._store, build_app(serving), in_flight, changed.set)
        me = asyncio.current_task()
        assert me is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
        failed = asyncio.create_task(engine.failed.wait())
        try:
            await engine.start()
            steps.begin(f"Running {self._total - before} rows")
            batching.runner.start()
            with _bar(steps, self._total) as update:
                while batch.status in LIVE:
                    news = asyncio.create_task(changed.wait())
                    await asyncio.wait({news, failed}, return_when=asyncio.FIRST_COMPLETED)
                    news.cancel()
                    if failed.done():
                        raise CliError(f"the engine cannot go on: {engine.health().reason}")
                    changed.clear()
                    counts = batching.runner.counts
                    update(before + counts.done + counts.failed)
                    if not counts.live:
                        batch = await asyncio.to_thread(self._store.get, OWNER, batch.id)
            return batch
        finally:
            failed.cancel()
            batching.runner.stop()
            await engine.close()
            await batching.runner.close()

    def _deliver(self, file_id: str | None, place: Path) -> None:
        """Whole, or not at all; a file of an earlier run goes away."""
        if file_id is None:
            place.unlink(missing_ok=True)
            return
        copy = place.with_name(f"{place.name}.new")
        with self._store.files.content(OWNER, file_id).open("rb") as content, copy.open("wb") as to:
            shutil.copyfileobj(content, to)
            to.flush()
            os.fsync(to.fileno())
        copy.replace(place)


@contextmanager
def _bar(steps: Steps, total: int) -> Iterator[Update]:
    """A bar on a terminal; elsewhere a line for every tenth."""
    if not steps.console.is_terminal:
        said = 0

        def tell(done: int) -> None:
            nonlocal said
            if done * 10 // total > said:
                said = done * 10 // total
                steps.say(f"      {done} of {total} rows")

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=steps.console, transient=True) as bar:
        task = bar.add_task("rows", total=total)
        yield lambda done: bar.update(task, completed=done)
