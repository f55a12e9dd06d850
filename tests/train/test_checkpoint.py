"""Checkpoints that are broken, foreign or of another world; and what loading may execute."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import World as Ranks
from tiny_run import (
    PLAIN,
    RECIPE,
    SETTINGS,
    UNIFORM4_EF,
    assert_same_state,
    build,
    built,
    play,
    tiny,
)

from dgc_repro.checksums import sealed
from dgc_repro.errors import UserError
from dgc_repro.launch.ranks import last_checkpoint
from dgc_repro.nests import tensors_of
from dgc_repro.sink.jsonl import DECISIONS_FILE, EPOCHS_FILE, RECORD_FILES, STEPS_FILE
from dgc_repro.train import checkpoint
from dgc_repro.train.run import Run

HASH = "a config"
OF_ANOTHER = r"train\.resume_from: .* is of another model"
FED_BACK = (*PLAIN, *UNIFORM4_EF)
KINDS = {EPOCHS_FILE: "epoch", STEPS_FILE: "step", DECISIONS_FILE: "decision"}


def write_lines(folder: Path, number: int) -> None:
    """What the sink writes at a step, made up."""
    for file, kind in KINDS.items():
        with (folder / file).open("a") as lines:
            lines.write(f"{json.dumps({'kind': kind, kind: number, 'loss': 1 / number})}\n")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a record of 4 steps and checkpoints of steps 2 and 3, the residuals not zero."""
    folder = tmp_path_factory.mktemp("saved")
    run = built(*FED_BACK)
    for stop in (1, 2, 3):
        play(run, until=stop)
        write_lines(folder, stop)
        checkpoint.save(run, folder, HASH)
    write_lines(folder, 4)
    with (folder / EPOCHS_FILE).open("a") as lines:
        lines.write('{"kind": "note", "text": "continuing"}\n{"kind": "ep')
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it to do harm to."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def loaded(folder: Path) -> tuple[Run, list[str]]:
    """A run that goes on from the folder, and what it notes."""
    run = built(*FED_BACK)
    return run, checkpoint.load(run, folder, HASH)


def fallen_back(folder: Path) -> tuple[Run, str]:
    """A run that goes on from the checkpoint before the newest, and the line that says why."""
    run, (note,) = loaded(folder)
    assert run.progress.step == 2
    assert f"{newest(folder)} is not used (" in note
    assert "using the one before, step-00000002" in note
    assert "\n" not in note
    return run, note


def newest(folder: Path) -> Path:
    return max((folder / checkpoint.FOLDER).glob("step-*"))


def test_a_broken_newest_checkpoint_falls_back_to_the_one_before_and_says_so(folder: Path) -> None:
    path = newest(folder) / "shared.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "is not used (shared.pt " in fallen_back(folder)[1]
    path.with_name("worker-1.pt").unlink()
    path.unlink()
    assert "is not used (" in fallen_back(folder)[1]


def test_a_half_written_checkpoint_is_not_looked_at_and_is_removed_later(folder: Path) -> None:
    whole = newest(folder)
    whole.rename(whole.with_name(f".{whole.name}"))
    run, notes = loaded(folder)
    assert (notes, run.progress.step) == ([], 2)
    checkpoint.save(run, folder, HASH)
    assert entries(folder) == ["step-00000002"]


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / checkpoint.FOLDER).iterdir())


def covered(folder: Path, step: int) -> dict[str, bytes]:
    """The record as it was at the checkpoint of a step."""
    return {
        name: b"".join((folder / name).read_bytes().splitlines(keepends=True)[:step])
        for name in RECORD_FILES
    }


def record(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RECORD_FILES}


NOTE = b'{"kind": "note", "text": "continuing"}\n'


@pytest.mark.parametrize(
    "file", ["step-3/shared.pt", "step-3/worker-1.pt", "step-3/manifest.json", EPOCHS_FILE]
)
def test_a_flipped_byte_is_noticed_or_harmless(file: str, folder: Path, tmp_path: Path) -> None:
    run, whole = built(*FED_BACK), built(*FED_BACK)
    if file not in RECORD_FILES:  # else with lines after the checkpoint
        checkpoint.load(run, folder, HASH)
    before, at_three = record(folder), covered(folder, 3)
    checkpoint.load(whole, shutil.copytree(folder, tmp_path / "whole"), HASH)
    path = folder / checkpoint.FOLDER / file.replace("step-3", "step-00000003")
    path = path if path.exists() else folder / file
    content, noticed = path.read_bytes(), 0
    offsets = {0, len(content) - 1, *range(1, len(content), max(1, len(content) // 16))}
    for number, offset in enumerate(sorted(offsets)):
        for name, text in before.items():
            if (folder / name).read_bytes() != text:
                (folder / name).write_bytes(text)
        damaged = bytearray(content)
        damaged[offset] ^= 1 << number % 8
        path.write_bytes(bytes(damaged))
        notes = checkpoint.load(run, folder, HASH)
        now = record(folder)
        if run.progress.step == 2:
            assert len(notes) == 1, "a damaged checkpoint"
            assert file.rpartition("/")[2] in notes[0]
            at_two = {name: b"".join(t.splitlines(True)[:2]) for name, t in at_three.items()}
            assert now == {**at_two, EPOCHS_FILE: at_two[EPOCHS_FILE] + NOTE}
        else:
            assert_same_state(run, whole)
            assert {name: now[name][: len(text)] for name, text in at_three.items()} == at_three
            tail = now[EPOCHS_FILE].removeprefix(at_three[EPOCHS_FILE])
            assert tail in (NOTE, b"") or file == EPOCHS_FILE
        noticed += bool(notes)
        run.unusable.clear()
    if path.suffix == ".pt":
        assert noticed == len(offsets)


@pytest.mark.parametrize(
    ("file", "how"),
    [
        *((EPOCHS_FILE, "missing"), (EPOCHS_FILE, "truncated")),
        *((STEPS_FILE, "a line lost"), (DECISIONS_FILE, "empty")),
    ],
)
def test_a_damaged_record_is_rebuilt_from_the_checkpoint(folder: Path, file: str, how: str) -> None:
    path, wanted = folder / file, covered(folder, 3)[file]
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        first = whole.index(b"\n") + 1
        path.write_bytes({"truncated": whole[:-130], "a line lost": whole[first:]}.get(how, b""))
    run, (note,) = loaded(folder)
    assert note == f"{path} was damaged; it was rebuilt from {newest(folder)}"
    assert run.progress.step == 3
    assert path.read_bytes() == wanted


def test_a_record_that_is_damaged_in_the_checkpoint_too_falls_back(folder: Path) -> None:
    wanted = covered(folder, 2)[STEPS_FILE]
    for path in (folder / STEPS_FILE, newest(folder) / STEPS_FILE):
        path.write_bytes(path.read_bytes().replace(b"loss", b"lost"))
    run, notes = loaded(folder)
    assert run.progress.step == 2
    assert "steps.jsonl is damaged, and so is the copy" in notes[0]
    assert "rebuilt from" in notes[1]
    assert (folder / STEPS_FILE).read_bytes() == wanted


@pytest.mark.parametrize(
    "content",
    [
        *(b"[]", b"", b"\xff\xfe{}", b"[" * 100_000, b"{}", b"\0" * 500),
        b'{"world_size": 2, "config_hash": "a config", "sizes": {}}',  # as older versions wrote it
        b'{"step": 3, "files": {}, "sha256": "0"}',
    ],
)
def test_a_malformed_manifest_is_one_line(folder: Path, content: bytes) -> None:
    (newest(folder) / "manifest.json").write_bytes(content)
    run, note = fallen_back(folder)
    assert "is not used (manifest.json " in note
    assert last_checkpoint(folder) == 2
    checkpoint.save(play_on(run), folder, HASH)
    assert entries(folder) == ["step-00000002", "step-00000003"]
    assert last_checkpoint(folder) == 3

    for path in (folder / checkpoint.FOLDER).glob("*/manifest.json"):
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"^paths\.runs: no checkpoint in .* remove") as caught:
        checkpoint.load(run, folder, HASH)
    assert "\n" not in str(caught.value)
    assert last_checkpoint(folder) is None
    assert entries(folder) == ["step-00000002", "step-00000003"], "nothing is lost"


def play_on(run: Run) -> Run:
    play(run, until=run.progress.step + 1)
    return run


def test_the_last_two_are_kept_and_the_checksums_are_of_what_lies_on_the_disk(folder: Path) -> None:
    assert entries(folder) == ["step-00000002", "step-00000003"]
    manifest = json.loads((newest(folder) / "manifest.json").read_text())
    assert manifest["files"] == {
        path.name: [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in newest(folder).iterdir()
        if path.name != "manifest.json"
    }
    assert set(manifest["files"]) == {"shared.pt", "worker-0.pt", "worker-1.pt", *RECORD_FILES}


FOREIGN = {
    "an empty folder": ("step-99999999", None),
    "a file": ("step-00000009", b"x"),
    "a file with the next name": ("step-00000004", b"x"),
    "a folder with the next name": ("step-00000004", None),
}


@pytest.mark.parametrize(("name", "content"), FOREIGN.values(), ids=FOREIGN)
def test_foreign_things_are_left_alone(folder: Path, name: str, content: bytes | None) -> None:
    path = folder / checkpoint.FOLDER / name
    path.mkdir() if content is None else path.write_bytes(content)
    run, (note,) = loaded(folder)
    assert note == f"{folder / checkpoint.FOLDER}: ignored {name} (not a checkpoint of a run)"
    assert run.progress.step == last_checkpoint(folder) == 3
    checkpoint.save(play_on(run), folder, HASH)
    assert last_checkpoint(folder) == 4
    left = set(entries(folder)) - {"step-00000003", "step-00000004"}
    assert len(left) == 1
    assert left.pop().startswith(name)
    again = built(*FED_BACK)
    checkpoint.load(again, folder, HASH)
    assert_same_state(again, run)


def test_a_folder_with_foreign_things_alone_or_nothing_is_a_beginning(tmp_path: Path) -> None:
    for name in RECORD_FILES:
        (tmp_path / name).write_bytes(b"of a run that was killed before its first checkpoint")
    run, notes = loaded(tmp_path)
    assert (notes, run.progress.step) == ([], 0)
    assert not any((tmp_path / name).exists() for name in RECORD_FILES)
    for name in ("step-99999999", "step-x"):
        (tmp_path / checkpoint.FOLDER / name).mkdir(parents=True)
    run, (note,) = loaded(tmp_path)
    assert "ignored step-99999999, step-x" in note
    assert run.progress.step == 0


def test_a_renamed_copy_of_a_checkpoint_does_not_count(folder: Path) -> None:
    shutil.copytree(newest(folder), folder / checkpoint.FOLDER / "step-99999999")
    run, (note,) = loaded(folder)
    assert "step-99999999 is not used (it is a copy of step-00000003)" in note
    assert run.progress.step == 3
    checkpoint.save(play_on(run), folder, HASH)
    assert entries(folder) == ["step-00000003", "step-00000004", "step-99999999"]


def loaded_by_ranks(folders: list[Path]) -> tuple[int, list[str]]:
    """A job of a rank: the step at which it goes on from its own folder, and what it notes."""
    local = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(dist.get_rank()))
        run = build(tiny(*FED_BACK, *local))
        notes = checkpoint.load(run, folders[dist.get_rank()], HASH)
    return run.progress.step, notes


@pytest.mark.parametrize("rank", [0, 1])
def test_damage_that_one_rank_alone_sees_takes_all_ranks_to_the_one_before(
    two_workers: Ranks, folder: Path, tmp_path: Path, rank: int
) -> None:
    folders = [folder, Path(shutil.copytree(folder, tmp_path / "other"))]
    (newest(folders[rank]) / f"worker-{rank}.pt").write_bytes(b"damaged")
    for step, (note,) in two_workers(loaded_by_ranks, folders):
        assert step == 2
        why = f"worker-{rank}.pt is missing or truncated (rank {rank})"
        assert f"step-00000003 is not used ({why}); using the one before" in note


def test_rank_0_tells_the_checkpoints(two_workers: Ranks, folder: Path, tmp_path: Path) -> None:
    folders = [folder, Path(shutil.copytree(folder, tmp_path / "other"))]
    newest(folder).rename(folder / checkpoint.FOLDER / "odd")
    said = f"{checkpoint.FOLDER}: ignored odd (not a checkpoint of a run)"
    for (step, (note,)), own in zip(two_workers(loaded_by_ranks, folders), folders, strict=True):
        assert (step, note) == (2, f"{own}/{said}")


def test_loading_runs_no_code(folder: Path, tmp_path: Path) -> None:
    """A pickle that would make a file is refused before it is run, and counts as broken."""
    mark = tmp_path / "was here"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return Path.touch, (mark,)

    path = newest(folder) / "shared.pt"
    torch.save({"model": Bomb()}, path)
    manifest = newest(folder) / "manifest.json"
    told = json.loads(manifest.read_text())
    told["files"]["shared.pt"] = [
        path.stat().st_size,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    ]
    manifest.write_bytes(sealed(told))
    _, note = fallen_back(folder)
    assert "(shared.pt is not loaded: " in note
    assert "could run code" in note
    assert "weights_only" not in note
    assert not mark.exists()


# Another world.


def residuals(run: Run) -> list[list[torch.Tensor]]:
    """By worker."""
    return [tensors_of(run.exchange.states(worker)) for worker in range(run.world.local)]


@pytest.mark.parametrize("workers", [1, 4])
def test_resharding_keeps_the_mean_of_the_residuals(folder: Path, workers: int) -> None:
    old = built(*FED_BACK)
    checkpoint.load(old, folder, HASH)
    assert any(bool(tensor.any()) for tensor in residuals(old)[0]), "the residuals are not zero"

    new = built(*FED_BACK, f"launch.workers={workers}", "train.reshard=mean")
    checkpoint.load(new, folder, None)
    for index, before in enumerate(zip(*residuals(old), strict=True)):
        mean = (before[0] + before[1]) / 2
        for worker in range(workers):
            assert torch.equal(residuals(new)[worker][index], mean)
        # What the model sees of them: their mean over workers (exact: a sum of equal terms).
        after = torch.stack([residuals(new)[w][index] for w in range(workers)]).mean(0)
        assert torch.allclose(after, mean, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["shards", "loco"])
def test_what_has_no_mean_belongs_to_one_number_of_workers(name: str, tmp_path: Path) -> None:
    shards = (*PLAIN, *SETTINGS[name])
    old = built(*shards)
    play(old, until=2)
    checkpoint.save(old, tmp_path, HASH)
    with pytest.raises(
        UserError, match=r"^train\.reshard: .* saved by 2 workers, each of which keeps"
    ) as caught:
        checkpoint.load(built(*shards, "launch.workers=4", "train.reshard=mean"), tmp_path, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("workers", "saved_at", "place"),
    # Half of the first epoch's 4 steps of 32 images; a quarter of the second's.
    [(4, 2, (1, 0)), (1, 5, (10, 1))],
)
def test_another_world_goes_on_at_the_same_image_of_the_epoch(
    tmp_path: Path, workers: int, saved_at: int, place: tuple[int, int]
) -> None:
    old = built(*FED_BACK)
    play(old, until=saved_at)
    checkpoint.save(old, tmp_path, HASH)
    run = built(*FED_BACK, f"launch.workers={workers}", "train.reshard=mean")
    checkpoint.load(run, tmp_path, None)
    assert (run.progress.step, run.progress.epoch) == place
    told = play(run)
    assert told.finished
    ends = [run.steps_per_epoch, 2 * run.steps_per_epoch]
    assert run.progress.step == ends[1]
    assert [record["step"] for record in told.records] == ends[place[1] :]


@pytest.mark.parametrize(
    ("overrides", "config", "message"),
    [
        (FED_BACK, "another", r"paths\.runs: .*written by another config \(hash a con"),
        ((*FED_BACK, "launch.workers=4"), None, r"train\.reshard: .* saved by 2 workers, this run has 4"),
        (SETTINGS["dense"], HASH, OF_ANOTHER),
        ((*UNIFORM4_EF, "model.width=8"), HASH, OF_ANOTHER),
        ((*FED_BACK, "optimizer=adam"), HASH, f"{OF_ANOTHER}, optimizer"),
    ],
    ids=["another config", "another number of workers", "another wrap list", "another model", "adam"],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(
    folder: Path, overrides: tuple[str, ...], config: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=f"^{message}") as caught:
        checkpoint.load(built(*overrides), folder, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("local", [(), ("train.local_steps=2",)], ids=["", "local steps"])
def test_a_continued_run_has_its_own_settings(tmp_path: Path, local: tuple[str, ...]) -> None:
    old = built(*PLAIN, *UNIFORM4_EF, *local, "optimizer.momentum=0.9")
    play(old, folder=tmp_path, until=2)
    own = ("optimizer.momentum=0.5", "optimizer.weight_decay=0.25")
    run = built(*PLAIN, *UNIFORM4_EF, *local, *own)
    checkpoint.load(run, tmp_path, None)
    for optimizer, before in zip(
        *([one.optimizer] if one.local is None else one.local.inner for one in (run, old)),
        strict=True,
    ):
        (group,) = optimizer.param_groups
        assert (group["momentum"], group["weight_decay"]) == (0.5, 0.25)
        kept = zip(*(tensors_of(one.state_dict()) for one in (optimizer, before)), strict=True)
        assert [torch.equal(one, two) for one, two in kept] == [True] * len(run.parameters)


def test_a_continued_run_keeps_its_own_rate_of_biases(tmp_path: Path) -> None:
    old = built(*RECIPE, "optimizer.norm_bias_factor=64")
    play(old, folder=tmp_path, until=2)
    run = built(*RECIPE, "optimizer.norm_bias_factor=2")
    checkpoint.load(run, tmp_path, None)
    others, biases = run.optimizer.param_groups
    assert biases["lr_factor"] == 2
    assert biases["weight_decay"] == others["weight_decay"] / 2


def test_the_time_of_processes_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 takes what came after the checkpoint; all before it is kept."""
    monkeypatch.setattr(os, "times", lambda: (3.0, 1.0, 0.5, 0.5, 1e6))
    first, second = built(*PLAIN), built(*PLAIN)
    checkpoint.save(first, tmp_path, "a config")
    checkpoint.load(second, tmp_path, "a config")
    assert (first.cpu_seconds, second.cpu_seconds) == (5.0, 10.0)
