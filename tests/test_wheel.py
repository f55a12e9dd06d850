"""The wheel carries conf/, and the package finds it there without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def pip(*arguments: str, cwd: Path) -> None:
    """Run pip in this environment and fail with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def overlays(conf: Path) -> set[str]:
    """Every YAML file under ``conf``, by its path from there."""
    return {path.relative_to(conf).as_posix() for path in conf.rglob("*.yaml")}


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without isolation, so that the suite needs no network: hatchling is one of the dev tools.
    command = ("wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    pip(*command, cwd=repository)
    (built,) = folder.glob("dgc_repro-*.whl")
    return built


def test_the_wheel_has_every_overlay_and_nothing_outside_the_package(
    wheel: Path, repository: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {
        name.removeprefix("dgc_repro/conf/")
        for name in names
        if name.endswith(".yaml") and "/template/" not in name
    }
    assert "config.yaml" in packed
    assert packed == overlays(repository / "conf")
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"dgc_repro"}


def test_an_installed_wheel_finds_its_own_conf(
    wheel: Path, repository: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--no-index", "--target", str(site), str(wheel), cwd=tmp_path)
    program = (
        "import dgc_repro\n"
        "from dgc_repro.launch.paths import conf_dir\n"
        "print(dgc_repro.__version__)\n"
        "print(conf_dir())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version, conf = done.stdout.splitlines()
    assert wheel.name.startswith(f"dgc_repro-{version}-")
    assert Path(conf).resolve() == (site / "dgc_repro" / "conf").resolve()
    assert overlays(Path(conf)) == overlays(repository / "conf")
