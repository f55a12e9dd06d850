"""A finished run whose record was changed afterwards is named, left out, and mended by its own command."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_run import FINISHED, PLAIN, SETTINGS, TINY

import dgc_repro
from dgc_repro.checksums import sealed
from dgc_repro.errors import UserError
from dgc_repro.launch.run import is_done
from dgc_repro.paper.records import is_finished, read_run
from dgc_repro.policy import oracle

Command = Callable[..., tuple[int, list[str]]]
Finished = Callable[..., Path]
RUN = (*TINY, *PLAIN, *SETTINGS["gravac"], "sink.every_steps=1")
READ = (
    *("config.yaml", "environment.json", "summary.json"),
    *("metrics.jsonl", "steps.jsonl", "decisions.jsonl", "policy.csv"),
)
"""What readers of a run folder use."""
FLIPS, SEED = 80, 28


def flip(path: Path, bit: int) -> bytes:
    """Flip one bit of a file; its content before."""
    before = path.read_bytes()
    changed = bytearray(before)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(changed))
    return before


def numbers_of(folder: Path) -> list[object]:
    """The lines of metrics.jsonl, without notes."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "epoch"]


def test_every_flipped_bit_of_a_finished_run_is_noticed(
    finished: Finished, caplog: pytest.LogCaptureFixture
) -> None:
    folder, other = finished(*RUN), finished(*RUN, "seed=1")
    names = sorted(path.name for path in folder.iterdir() if path.suffix and path.is_file())
    assert set(READ) == set(names) - {"launch.log"}
    paths = [folder / name for name in READ]
    assert {"files", "sha256"}.isdisjoint(read_run(folder).summary)
    assert dgc_repro.load_runs(folder.parent).runs["run"].nunique() == 2
    places, unnoticed = random.Random(SEED), []
    for number in range(FLIPS):
        path = paths[number % len(paths)]
        bit = places.randrange(8 * path.stat().st_size)
        before = flip(path, bit)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = dgc_repro.load_runs(folder.parent)
        is_named = f"{folder}: {path.name} " in caplog.text or f"{path}: " in caplog.text
        if list(found.runs["run"]) != [other.name] or not is_named or is_done(folder):
            unnoticed.append((path.name, bit))
        path.write_bytes(before)
    assert unnoticed == []


@pytest.mark.parametrize("name", ["summary.json", "steps.jsonl", "policy.csv"])
def test_the_same_command_names_and_mends_a_damaged_run(
    command: Command, finished: Finished, trained: list[Path], said: list[str], name: str
) -> None:
    folder = finished(*RUN)
    trained.clear()
    whole = numbers_of(folder)
    flip(folder / name, 300)
    with pytest.raises(UserError, match=name) as caught:
        read_run(folder)
    if name != "summary.json":  # may be no JSON any more, as if the run had not ended
        with pytest.raises(ValueError, match=f"runs: .*{name} is damaged"):
            oracle.finished(folder)
    assert command("wandb", "runs")[0] == 2
    assert said[0] == f"left out: {caught.value}"
    assert said[1].startswith("error: wandb: no finished run")
    assert command(*RUN) == (0, [])
    assert f"does not count as finished: {caught.value}" in said
    assert trained == [folder]
    assert numbers_of(folder) == whole
    assert is_done(folder)
    (folder / name).unlink()
    assert not is_done(folder)


@pytest.mark.parametrize(
    "files", [None, ["config.yaml"], {"../config.yaml": [1, ""]}, {"": [1, ""]}, {"config.yaml": 1}]
)
def test_a_summary_with_a_checksum_and_no_list_of_files_is_damaged(
    tmp_path: Path, files: object
) -> None:
    (tmp_path / "config.yaml").touch()
    path = tmp_path / "summary.json"
    path.write_bytes(sealed({"status": "finished"} | ({"files": files} if files else {})))
    with pytest.raises(UserError, match=f"^{tmp_path}: .*"):
        is_finished(tmp_path)


def test_a_folder_that_lost_its_config_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        shutil.copytree(FINISHED, tmp_path / name)
    (tmp_path / "b" / "config.yaml").unlink()
    assert list(dgc_repro.load_runs(tmp_path).runs["run"]) == ["a"]
    assert f"left out: {tmp_path / 'b'}: no config.yaml" in caplog.text
