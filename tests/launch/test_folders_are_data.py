"""A run folder is data: reading it, comparing it, repeating a command beside it and training what it says
import nothing that the user's own command line does not name."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import refused
from tiny_run import TINY, configured

import dgc_repro
from dgc_repro.checksums import Damaged, entry_in
from dgc_repro.compare import command as compare
from dgc_repro.errors import UserError
from dgc_repro.launch import ranks
from dgc_repro.launch import run as running
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.ranks import OWN_TARGETS
from dgc_repro.launch.worker import read_config, run_worker
from dgc_repro.train import checkpoint

TARGETS = ("payload.Payload", "runs.evil.payload.Payload", "payload:Payload", "runs.evil.payload")
PAYLOAD = "from pathlib import Path\n\nPath({marker!r}).touch()\n\n\nclass Payload:\n    pass\n"


@pytest.fixture(params=TARGETS)
def evil(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A config that names a component in ``runs/evil``, where Python finds it."""
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    (folder / "payload.py").write_text(PAYLOAD.format(marker=str(tmp_path / "executed")))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv(OWN_TARGETS, raising=False)
    for name in ("payload", "runs", "runs.evil", "runs.evil.payload"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    config = configured(*TINY)
    config["compressor"] = {"_target_": request.param, "path": "${oc.env:HOME}"}
    return config


def write(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "environment.json").write_text("{}")
    (folder / "summary.json").write_text('{"status": "finished"}')
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


def continue_it(evil: dict[str, Any]) -> None:
    running.run_config(configured(*TINY, "train.resume_from=runs/evil"))


def prepare_another(evil: dict[str, Any]) -> None:
    own = configured(*TINY)
    running.prepare(write(evil, run_folder(own)), own)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda evil: dgc_repro.load_runs("runs"), r"evil|no finished run"),
        (lambda evil: compare.main(["runs"]), r"evil|no finished run"),
        (prepare_another, "holds another config"),
        (lambda evil: run_worker(Path("runs/evil")), "which no command line has named"),
        (continue_it, "train.resume_from: no checkpoint"),
    ],
    ids=["load_runs", "compare", "command", "worker", "continued"],
)
def test_nothing_is_imported_that_no_command_line_names(
    read: Callable[[dict[str, Any]], object], says: str, evil: dict[str, Any]
) -> None:
    write(evil, Path("runs/evil"))
    with pytest.raises(UserError, match=says):
        read(evil)
    assert not Path("executed").exists()


def test_a_worker_takes_a_component_that_its_command_line_names(
    evil: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(evil, Path("runs/evil"))
    monkeypatch.setenv(OWN_TARGETS, evil["compressor"]["_target_"])
    assert read_config(folder)["compressor"] == evil["compressor"]  # no resolver has run


# Links and sizes.


@pytest.fixture
def stopped(finished: Callable[..., Path]) -> Path:
    """A run folder with a checkpoint, whose run has not finished."""
    folder = finished(*CONTINUED)
    (folder / "summary.json").unlink()
    return folder


CONTINUED = (*TINY, "train.epochs=3", "train.checkpoint_every_epochs=1")


def moved_out(path: Path) -> Path:
    """Move a file or folder of a run elsewhere, and leave a link to it."""
    outside = Path("outside", path.name)
    outside.parent.mkdir()
    path.rename(outside)
    path.symlink_to(outside.absolute())
    return outside


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["checkpoints", "config.yaml", "."])
def test_a_run_with_a_link_in_its_place_is_refused_in_one_line(
    command: Callable[..., tuple[int, list[str]]], stopped: Path, name: str
) -> None:
    if name != "checkpoints":
        (stopped / "config.yaml").write_text("root: SECRET: [\n")
    outside = moved_out(stopped / name if name != "." else stopped)
    before = contents(Path("outside"))
    line = refused(command(*CONTINUED))
    assert "is a symbolic link, which is not followed" in line
    assert "SECRET" not in line
    assert contents(Path("outside")) == before
    assert outside.exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "environment.json"])
def test_a_run_writes_nothing_through_links(
    command: Callable[..., tuple[int, list[str]]], stopped: Path, name: str
) -> None:
    precious = Path("precious")
    precious.write_text("mine")
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(precious.absolute())
    (stopped / "config.yaml.tmp").symlink_to(precious.absolute())
    (stopped / "checkpoints" / ".step-00000001").symlink_to(Path().absolute())
    assert command(*CONTINUED) == (0, [])
    assert precious.read_text() == "mine"
    assert dgc_repro.load_runs("runs").runs["run"].tolist() == [stopped.name]


def test_a_log_is_begun_in_a_new_file(stopped: Path) -> None:
    precious = Path("precious")
    precious.write_text("mine")
    (stopped / "launch.log").unlink(missing_ok=True)
    (stopped / "launch.log").symlink_to(precious.absolute())
    with ranks.held(stopped) as held:
        held.log.write("ours")
    assert precious.read_text() == "mine"
    assert (stopped / "launch.log").read_text() == "ours"


def test_a_linked_step_is_no_checkpoint_and_is_not_pruned(
    command: Callable[..., tuple[int, list[str]]], stopped: Path
) -> None:
    newest = max((stopped / "checkpoints").glob("step-*"))
    outside = moved_out(newest)
    before = contents(Path("outside"))
    assert command(*CONTINUED) == (0, [])
    assert contents(Path("outside")) == before
    assert outside.is_dir()


def test_a_packed_checkpoint_is_not_unpacked(tmp_path: Path) -> None:
    """torch.save packs nothing; a part of 1 MB may claim, and unpack to, a gigabyte."""
    path = tmp_path / "shared.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("shared/data.pkl", bytes(2**24))
    assert path.stat().st_size < 2**16
    with pytest.raises(Damaged, match="is compressed"):
        checkpoint._load(path, {path.name: entry_in(path)})


@pytest.mark.parametrize(
    "text",
    [
        *("seed: !!python/object/apply:pathlib.Path.touch []", "seed: !!python/name:os.x []"),
        *("seed: &a [*a]", "x: 1\n" * 10**6, "[" * 20000),
    ],
    ids=["call", "name", "in itself", "long", "deep"],
)
def test_what_is_no_plain_config_is_refused_in_a_short_line(tmp_path: Path, text: str) -> None:
    Path("config.yaml").write_text(text)
    with pytest.raises(UserError, match="is not a config") as caught:
        read_config(tmp_path)
    assert len(str(caught.value)) < 1000
