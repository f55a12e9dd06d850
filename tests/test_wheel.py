"""The package as users install it: wheel, sdist, version, extras, and what works without an extra."""

from __future__ import annotations

import email
import importlib.metadata
import json
import re
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from shell import run, succeed
from tiny_run import TEXT, TINY

import dgc_repro
from dgc_repro.errors import REPRO_LIBRARIES
from dgc_repro.launch.environment import torchvision_version

MOST_BYTES = 8 * 2**20  # of the wheel, four fifths of which are results
slow = pytest.mark.slow
FRAMEWORKS = ("accelerate", "lightning", "transformers")
OPTIONAL = (
    *("wandb", "wandb_workspaces", "submitit", "joblib", "optuna", "nbclient", "mkdocs"),
    *FRAMEWORKS,
)
LATE = ("torchvision", "sklearn")
"""Needed by some models and data sets, and imported there."""


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


def needed_by(wheel: Path) -> list[Requirement]:
    """What the wheel's metadata ask for, extras included."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    return [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]


def plain(needed: Iterable[Requirement]) -> list[str]:
    """The names of those that an install without extras brings."""
    without = {"extra": ""}
    return [
        canonicalize_name(need.name)
        for need in needed
        if need.marker is None or need.marker.evaluate(without)
    ]


def with_needs(names: Iterable[str]) -> set[str]:
    """The names of these installed distributions and of all that they need, extras left out."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += plain(map(Requirement, importlib.metadata.requires(name) or []))
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


@pytest.fixture(scope="module")
def bare(wheel: Path, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it asks for without extras: links to the
    distributions of this environment, so that no network is needed. (Never install into it: pip would write
    through the links.)"""
    folder = tmp_path_factory.mktemp("bare")
    succeed(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
    (folder / "linked").mkdir()
    for name in with_needs(plain(needed_by(wheel))):
        installed = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            place = folder / "linked" / top
            if not place.is_symlink():  # distributions share a folder such as nvidia
                place.symlink_to(Path(str(installed.locate_file(top))))
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (packages / "bare.pth").write_text(f"{folder / 'linked'}\n{site}\n", encoding="utf-8")
    return folder / "venv" / "bin" / "python"


# Contents


@slow
def test_the_wheel_has_configs_results_c_sources_and_types_and_nothing_outside_the_package(
    wheel: Path, repository: Path
) -> None:
    names = files_of(wheel)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"dgc_repro"}
    conf = {f"dgc_repro/{path.relative_to(repository)}" for path in repository.glob("conf/**/*.*")}
    results = repository / "results"
    pools = [file.parent for file in results.glob("*/*/runs.parquet")]
    published = [file for pool in pools for file in [*pool.glob("*.parquet"), pool / "SHA256SUMS"]]
    published += [*results.glob("*/*/verdicts.json"), *results.glob("bench/*/settings.csv")]
    packed_results = {f"dgc_repro/published/{path.relative_to(results)}" for path in published}
    sources = {
        path.relative_to(repository).as_posix()
        for path in (repository / "dgc_repro").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == conf | sources | packed_results
    assert any(name.endswith(".c") for name in packed)
    assert "dgc_repro/py.typed" in packed
    assert wheel.stat().st_size < MOST_BYTES


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
def test_only_the_extra_repro_needs_more_than_torch_and_numpy(wheel: Path) -> None:
    needed = needed_by(wheel)
    assert set(plain(needed)) == {"torch", "numpy"}
    repro = {"extra": "repro"}
    names = {need.name for need in needed if need.marker and need.marker.evaluate(repro)}
    distributions = importlib.metadata.packages_distributions()
    assert names == {name for one in REPRO_LIBRARIES for name in map(str.lower, distributions[one])}


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


@slow
def test_an_installed_wheel_has_the_evidence(site: Path, repository: Path, tmp_path: Path) -> None:
    """In an empty folder it answers as the checkout does."""
    program = """
        import hashlib, sys
        import pandas as pd
        import dgc_repro
        from dgc_repro.names import results_dir
        print(results_dir().name, file=sys.stderr)
        found = {"claims": [dgc_repro.load_claims()]}
        for file in sorted(results_dir().glob("*/*/runs.parquet")):
            name = file.parent.relative_to(results_dir()).as_posix()
            found[name] = dgc_repro.load_results(name)
        for name, frames in found.items():
            print(name, *(hashlib.sha256(frame.to_csv().encode()).hexdigest() for frame in frames))
    """
    ask = (sys.executable, "-c", textwrap.dedent(program))
    packed = run(*ask, cwd=tmp_path, path=site)
    assert (packed.returncode, packed.stderr) == (0, "published\n")
    assert len(packed.stdout.splitlines()) > 10
    assert packed.stdout == succeed(*ask, cwd=tmp_path, path=repository)
    command = (sys.executable, "-m", "dgc_repro")
    question = ("recommend", "model=resnet18", "network=ethernet_1gbit")
    answer = succeed(*command, *question, cwd=tmp_path, path=site)
    assert answer
    assert answer == succeed(*command, *question, cwd=tmp_path, path=repository)
    plan = succeed(*command, "reproduce", "dynamic/table1", "plan=true", cwd=tmp_path, path=site)
    assert plan.startswith("dynamic/table1")


# Without what is optional


@slow
def test_torch_and_numpy_are_enough_for_compressors_hooks_and_fsdp(
    bare: Path, tmp_path: Path
) -> None:
    program = Path(__file__).with_name("bare_loop.py")
    launch = ("-m", "torch.distributed.run", "--nproc_per_node=2", str(program))
    names = set(succeed(str(bare), *launch, cwd=tmp_path, path="").split())
    assert names == {n for n, of in dgc_repro._PUBLIC.items() if of.startswith("compressor.")}


@slow
def test_without_the_extra_the_command_line_is_one_line(bare: Path, tmp_path: Path) -> None:
    command = (str(bare), "-m", "dgc_repro")
    version = succeed(*command, "--version", cwd=tmp_path, path="")
    assert version == f"dgc_repro {dgc_repro.__version__}\n"
    for arguments in ((), ("reproduce", "dynamic/table1"), ("recommend", "--help")):
        done = run(*command, *arguments, cwd=tmp_path, path="")
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(
            r"error: the command line needs \w+, which is not installed; "
            r"pip install 'dgc_repro\[repro\]'\n",
            done.stderr,
        )
    done = run(str(bare), "-m", "dgc_repro.paper", cwd=tmp_path, path="")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: python -m dgc_repro\.paper needs \w+, which .*\n", done.stderr)


@slow
def test_the_command_line_starts_without_what_only_some_runs_need(
    repository: Path, tmp_path: Path
) -> None:
    program = "import dgc_repro.launch.main, sys; print(*sorted(sys.modules))"
    loaded = set(succeed(sys.executable, "-c", program, cwd=tmp_path, path=repository).split())
    assert "hydra" in loaded
    assert not loaded & {*OPTIONAL, *LATE, "torch", "pandas", "dgc_repro.predict"}
    program = program.replace("main", "sweep", 1)
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
