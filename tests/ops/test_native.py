"""The extension module against its numpy twin, and an install without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.ops import NormSpec, native
from octavo.ops.reference import ReferenceOps

CSRC = Path(__file__).parents[2] / "csrc"
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
needs_cmake = pytest.mark.skipif(CMAKE is None, reason="cmake is not installed")


def configure(build: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    assert CMAKE is not None
    command = [CMAKE, "-S", str(CSRC), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"]
    return subprocess.run(
        [*command, *options],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The install's extension, or where the tests run from a plain source tree one built here."""
    module, _ = native.load_native()
    if module is None:
        if CMAKE is None or shutil.which("c++") is None or find_spec("nanobind") is None:
            pytest.skip("cmake, a C++ compiler or nanobind is not installed")
        build = tmp_path_factory.mktemp("native")
        configure(build)
        subprocess.run([CMAKE, "--build", str(build), "-j2"], capture_output=True, check=True)
        spec = spec_from_file_location("_native", next(build.glob("_native*.so")))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def test_the_extension_agrees_with_its_twin(kernels: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 101)).astype(np.float32)
    weight = rng.normal(size=101).astype(np.float32)
    pool = kernels.Pool(2)

    def norm(x: np.ndarray, weight: np.ndarray) -> Any:
        return kernels.norm(x, weight, "rms", 1e-5, 0.0, None, None, pool)[0]

    got = norm(x, weight)
    twin, _ = ReferenceOps().norm(x, weight, NormSpec("rms", 1e-5))
    assert np.allclose(got, twin, atol=1e-6)
    for i in range(7):
        assert (norm(x[i : i + 1], weight)[0] == got[i]).all()
    with pytest.raises(ValueError, match="9 values for rows of 101"):
        norm(x, weight[:9].copy())
    with pytest.raises(TypeError):
        norm(x.astype(np.float64), weight)


def test_every_instruction_set_that_runs_here_can_be_forced(kernels: Any) -> None:
    info = kernels.build_info()
    assert info["isa"] in info["isas"] and info["isas"][-1] == "generic"
    code = (
        "import sys, importlib.util as u; s = u.spec_from_file_location('_native', sys.argv[1]);"
        "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.build_info()['isa'])"
    )
    for isa in [*info["isas"], "mmx"]:
        done = subprocess.run(
            [sys.executable, "-c", code, kernels.__file__],
            env={**os.environ, "OCTAVO_ISA": isa},
            capture_output=True,
            text=True,
        )
        if isa == "mmx":
            assert "OCTAVO_ISA is 'mmx'" in done.stderr and "generic" in done.stderr
        else:
            assert done.stdout.strip() == isa


@needs_cmake
def test_without_a_compiler_the_build_says_so_and_succeeds(tmp_path: Path) -> None:
    done = configure(tmp_path, CXX="/nonexistent/c++")
    assert "without compiled kernels: no C++ compiler was found" in " ".join(done.stderr.split())
    assert "no C++ compiler" in (tmp_path / native.REASON_FILE).read_text()


@needs_cmake
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler is installed")
def test_without_python_headers_the_build_says_so_and_succeeds(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON")
    assert "Python headers were not found" in " ".join(done.stderr.split())


def test_the_install_says_whether_it_has_the_kernels_and_why_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert native.native_available() == (native.native_reason() == "")
    assert bool(native.build_info()) == native.native_available()
    monkeypatch.setattr(native, "MODULE", "octavo.ops._never_built")
    monkeypatch.setattr(native.resources, "files", lambda package: tmp_path)
    assert not native.native_available()
    assert "source tree" in native.native_reason()
    (tmp_path / native.REASON_FILE).write_text("no C++ compiler was found\n")
    assert native.native_reason().endswith("no compiled kernels: no C++ compiler was found")
