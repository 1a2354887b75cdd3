"""The wheel and the sdist hold the package alone, and work in a new environment, in an empty folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from lit_sparse.version import __version__

from .conftest import ROOT, metrics_of
from .test_extras import needed_by

pytestmark = [pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(900)]

QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu")
#: Files of the sdist besides the package and what the build writes.
BESIDES = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
LARGEST = 2 * 2**20


def run(*command: str, cwd: Path, status: int = 0) -> str:
    """Run a command without the checkout on its path, and return its output, or its errors if it is to fail."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files of the repository, with new ones."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    return run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()


@pytest.fixture(scope="module")
def distributions(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and an sdist, built from a copy of the repository."""
    pytest.importorskip("build", reason="needs the extra 'dev'")
    pytest.importorskip("twine", reason="needs the extra 'dev'")
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in tracked:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source), cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    assert f"-{__version__}-" in wheel.name
    return {"wheel": wheel, "sdist": sdist}


def test_they_pass_the_checks_of_the_index(distributions: dict[str, Path], tmp_path: Path) -> None:
    printed = run(sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions.values()), cwd=tmp_path)
    assert printed.count("PASSED") == 2


def test_they_hold_the_package_alone(distributions: dict[str, Path], tracked: list[str]) -> None:
    package = {name for name in tracked if name.startswith("lit_sparse/") and (ROOT / name).is_file()}
    names = {name for name in zipfile.ZipFile(distributions["wheel"]).namelist() if ".dist-info/" not in name}
    assert names == package
    with tarfile.open(distributions["sdist"]) as archive:
        files = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    assert {name for name in files if not name.startswith("lit_sparse.egg-info/")} == package | BESIDES
    assert all(path.stat().st_size < LARGEST for path in distributions.values())


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(
    request: pytest.FixtureRequest, distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A new environment with the package, and an empty folder; the dependencies come from this environment."""
    folder, empty = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = run(str(python), "-c", "import site; print(site.getsitepackages()[0])", cwd=empty).strip()
    # These paths come last on sys.path. The .pth files in them, such as one of an editable installation, are not read.
    paths = [path for path in sys.path if path.endswith("-packages")]
    (Path(packages) / "dependencies.pth").write_text("\n".join(paths) + "\n")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(str(python), "-m", "pip", "install", *options, str(distributions[request.param]), cwd=empty)
    return folder / "bin", empty


def test_the_commands_of_a_new_user(installed: tuple[Path, Path]) -> None:
    programs, empty = installed

    def lit_sparse(*words: str) -> str:
        return run(str(programs / "lit-sparse"), *words, cwd=empty)

    where = run(str(programs / "python"), "-c", "import lit_sparse; print(lit_sparse.__file__)", cwd=empty)
    assert Path(where).is_relative_to(programs.parent)
    assert lit_sparse("--version").strip() == f"lit-sparse {__version__}"
    assert "  ssvae/digits  " in lit_sparse("configs")
    assert "class_path: SemiSupervisedVAE" in lit_sparse("configs", "ssvae/digits")
    assert "  Sparsemax  " in lit_sparse("list", "mappings")
    assert not list(empty.iterdir())
    *_, hint, last = lit_sparse("fit", "-c", "ssvae/digits", "--trainer.max_epochs", "1", *QUIET).splitlines()
    assert last == "run folder: runs/ssvae/digits/0"
    lit_sparse(*hint.removeprefix("test with: lit-sparse ").split(), *QUIET)
    lit_sparse("test", "-c", "configs/ssvae/digits.yaml", "--ckpt_path", "last", *QUIET)
    for number in ("0", "1"):
        assert "test/accuracy" in metrics_of(empty / "runs/ssvae/digits/0/test" / number)
    assert "report.html" in lit_sparse("report", "runs/ssvae/digits/0")


def test_studies_are_found(installed: tuple[Path, Path]) -> None:
    programs, empty = installed
    for name, words in (
        ("ssvae", "results/ssvae_smoke.csv has no rows"),
        ("configs/studies/ssvae.yaml", "results/ssvae_smoke.csv has no rows"),
        ("ssva", "Did you mean 'ssvae'?"),
    ):
        command = (str(programs / "lit-sparse"), "study", name, "--schedule", "smoke", "--tables")
        assert words in run(*command, cwd=empty, status=2)


def test_the_wheel_alone(distributions: dict[str, Path], tmp_path: Path) -> None:
    """It brings what torch, numpy and numba need; the core works; and the command that is printed makes it train."""
    venv.create(tmp_path / "bare", symlinks=True, with_pip=True)
    programs = tmp_path / "bare" / "bin"
    constraints = ("-c", str(ROOT / "constraints.txt"))
    pip = (str(programs / "python"), "-m", "pip")
    run(*pip, "install", "--quiet", "--no-compile", *constraints, str(distributions["wheel"]), cwd=tmp_path)
    listed = run(*pip, "list", "--format=freeze", cwd=tmp_path).split()
    names = {canonicalize_name(line.partition("==")[0]) for line in listed}
    assert names <= needed_by(["torch", "numpy", "numba"]) | {"lit-sparse", "pip", "setuptools"}
    assert "the core works" in run(str(programs / "python"), str(ROOT / "tests" / "support" / "core.py"), cwd=tmp_path)
    words = ("fit", "-c", "ssvae/digits", "--trainer.fast_dev_run=true", *QUIET)
    refusal = run(str(programs / "lit-sparse"), *words, cwd=tmp_path, status=2)
    assert refusal.count("\n") == 1
    command = refusal.strip().partition("Install it with: ")[2]
    assert command.startswith('pip install "pytorch-lightning')
    run(*pip, *shlex.split(command)[1:], "--quiet", "--no-compile", *constraints, cwd=tmp_path)
    run(str(programs / "lit-sparse"), *words, cwd=tmp_path)
