"""The package as users install it: wheel, sdist, version, extras, and what works without an extra."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from tiny_run import TEXT, TINY

import dgc_repro
from dgc_repro.launch.environment import torchvision_version

TIMEOUT_S = 200  # a busy machine starts Python ten times slower than an idle one
slow = pytest.mark.slow
FRAMEWORKS = ("accelerate", "lightning", "transformers")
OPTIONAL = (
    *("wandb", "wandb_workspaces", "submitit", "joblib", "optuna", "nbclient", "mkdocs"),
    *FRAMEWORKS,
)
LATE = ("torchvision", "sklearn")
"""Needed by some models and data sets, and imported there."""


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command to its end. ``path``: PYTHONPATH."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(path or ""), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def succeed(*command: str, cwd: Path, path: Path | None = None) -> str:
    """The output of a command that must succeed. ``path``: PYTHONPATH."""
    done = run(*command, cwd=cwd, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments: str, cwd: Path) -> None:
    """Run pip in this environment."""
    succeed(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


def built(source: Path, folder: Path) -> Path:
    """The wheel of a source tree. Without isolation: hatchling is one of the dev tools, so that the suite
    needs no network."""
    command = ("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    pip(*command, cwd=source)
    (found,) = folder.glob("dgc_repro-*.whl")
    return found


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(repository, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel alone is installed."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel), cwd=folder)
    return folder


# Contents


@slow
def test_the_wheel_has_configs_c_sources_and_types_and_nothing_outside_the_package(
    wheel: Path, repository: Path
) -> None:
    names = files_of(wheel)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"dgc_repro"}
    conf = {f"dgc_repro/{path.relative_to(repository)}" for path in repository.glob("conf/**/*.*")}
    sources = {
        path.relative_to(repository).as_posix()
        for path in (repository / "dgc_repro").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == conf | sources
    assert any(name.endswith(".c") for name in packed)
    assert "dgc_repro/py.typed" in packed


@slow
def test_the_sdist_builds_the_same_wheel(wheel: Path, repository: Path, tmp_path: Path) -> None:
    build = ("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path))
    succeed(sys.executable, *build, cwd=repository)
    (sdist,) = tmp_path.glob("dgc_repro-*.tar.gz")
    (tmp_path / "unpacked").mkdir()
    succeed("tar", "-xzf", str(sdist), "-C", str(tmp_path / "unpacked"), cwd=tmp_path)
    (source,) = (tmp_path / "unpacked").iterdir()
    assert files_of(built(source, tmp_path / "again")) == files_of(wheel)


@slow
def test_only_extras_need_wandb_and_the_plugins(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    plain = {need.name for need in needed if need.marker is None or need.marker.evaluate()}
    assert {"torch", "hydra-core"} <= plain
    others = {"wandb", "submitit", "wandb-workspaces", "ipykernel", "pytest", "mypy"}
    assert not plain & {*others, *FRAMEWORKS}
    extras = {"wandb", "reports", "sweep", "slurm", "notebook", "docs", "dev", *FRAMEWORKS}
    assert set(metadata.get_all("Provides-Extra", [])) == extras


def test_dev_has_every_extra(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (own,) = (text for text in extras["dev"] if text.startswith("dgc_repro["))
    assert Requirement(own).extras == set(extras) - {"dev"}


# Version


def test_the_version_stands_in_one_place(repository: Path) -> None:
    """pyproject.toml reads it from the package; the citation and the changelog repeat it."""
    version = dgc_repro.__version__
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]
    citation = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    needed = {"cff-version", "message", "title", "type", "license", "authors"}
    assert needed <= {key for key, value in citation.items() if value}
    changes = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.M)
    assert released[:1] in ([], [version]), "the newest release of CHANGELOG.md is another version"


# An installed wheel, outside the checkout


@slow
def test_an_installed_wheel_trains_with_its_own_configs_and_c_kernels(
    site: Path, tmp_path: Path
) -> None:
    arguments = (*TINY, "compressor=topk", "train.epochs=1")
    succeed(sys.executable, "-m", "dgc_repro", *arguments, cwd=tmp_path, path=site)
    (record,) = tmp_path.glob("runs/*/environment.json")
    environment = json.loads(record.read_text(encoding="utf-8"))
    assert environment["kernels"] == "C"
    assert environment["commit"] == ""  # not the checkout's
    command = (sys.executable, str(site / "bin" / "dgc-repro"), "--version")
    printed = succeed(*command, cwd=tmp_path, path=site)
    assert printed == f"dgc_repro {dgc_repro.__version__}\n"
    assert (site / f"dgc_repro-{dgc_repro.__version__}.dist-info").is_dir()


# Without what is optional


@slow
def test_the_command_line_starts_without_what_only_some_runs_need(
    repository: Path, tmp_path: Path
) -> None:
    program = "import dgc_repro.launch.main, sys; print(*sorted(sys.modules))"
    loaded = set(succeed(sys.executable, "-c", program, cwd=tmp_path, path=repository).split())
    assert "hydra" in loaded
    assert not loaded & {*OPTIONAL, *LATE, "torch", "pandas", "dgc_repro.predict"}
    program = program.replace("main", "command_line", 1)
    loaded = set(succeed(sys.executable, "-c", program, cwd=tmp_path, path=repository).split())
    assert "torch" in loaded
    assert not loaded & {*OPTIONAL, *LATE}


@slow
def test_a_text_is_learnt_where_torchvision_is_broken(repository: Path, tmp_path: Path) -> None:
    """As in an environment whose torchvision was built for another torch."""
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms missing')\n")
    command = (sys.executable, "-m", "dgc_repro", *TINY, "train.epochs=1")
    succeed(*command, *TEXT, cwd=tmp_path, path=repository)
    (record,) = tmp_path.glob("runs/*/environment.json")
    installed = torchvision_version()
    assert json.loads(record.read_text(encoding="utf-8"))["torchvision"] == installed
    images = run(*command, cwd=tmp_path, path=repository)
    assert images.returncode == 2
    (line,) = images.stderr.splitlines()
    assert line.startswith("error: model._target_: cannot import dgc_repro.model.resnet18.ResNet18")
    assert "(operator torchvision::nms missing); install the torchvision that was built for" in line


# make install


def test_a_cpu_install_asks_for_wheels_without_cuda_of_the_tested_versions(
    repository: Path,
) -> None:
    pins = (repository / "constraints.txt").read_text(encoding="utf-8")
    pinned = {f"{pin}+cpu" for pin in re.findall(r"^(?:torch|torchvision)==\S+", pins, re.M)}
    assert len(pinned) == 2
    dry = ("make", "--always-make", "--dry-run", "install")
    (plain,) = re.findall(r"-m pip install (.*)", succeed(*dry, cwd=repository))
    assert not pinned & set(plain.split())
    printed = succeed(*dry, "TORCH=cpu", "TORCH_INDEX=file:///wheels", cwd=repository)
    (cpu,) = re.findall(r"-m pip install (.*)", printed)
    added = {"--extra-index-url", "file:///wheels"}
    assert set(cpu.split()) - set(plain.split()) == pinned | added
    assert plain.split()[:2] == cpu.split()[:2] == ["-c", "constraints.txt"]
