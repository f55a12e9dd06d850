"""Checkpoints: everything a run needs to continue bit for bit.

``checkpoints/step-<8 digits>/`` holds:

- ``shared.pt``: model, optimizer, policy, ledger and progress. Rank 0 writes it.
- ``worker-<r>.pt``: the residuals, the random state and the hidden states of one worker; with local steps the
  state of its inner optimizer. (Its weights are the shared ones, because no checkpoint is written within a
  round; with ``train.fragments`` they are its own, and are saved.)
- copies of the record (``metrics.jsonl``, ``steps.jsonl``, ``decisions.jsonl``) as it was at this step.
- ``manifest.json``, written last: the step, the number of workers, the config hash, the size and SHA-256
  of every file, and a SHA-256 of the manifest itself.

A folder is written under a hidden name and renamed when it is complete. The last two are kept.
``load`` compares every file that it reads with its checksum, and all ranks agree on the newest checkpoint
in which no rank finds damage. It rebuilds a damaged file of the record from its copy. Other files and
folders in ``checkpoints/`` are left alone. Files load with ``weights_only=True``: loading runs no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch

from dgc_repro.checksums import FILES, OTHER, Damaged, Entry, entry_of, read_sealed, sealed
from dgc_repro.errors import DiskFull, UserError, refuse_first_of, writing
from dgc_repro.exchange import saved as saved_states
from dgc_repro.exchange.saved import refuse_reshard
from dgc_repro.exchange.world import World
from dgc_repro.files import opened, refuse_link, remove, replace
from dgc_repro.nests import mean_of, structure
from dgc_repro.sink.jsonl import RECORD_FILES, after
from dgc_repro.train.run import Run
from dgc_repro.train.saved_run import INNER, OWN, begin_anew, restore, shared_state, state_of_worker

KEPT = 2
FOLDER = "checkpoints"
MANIFEST = "manifest.json"
NO_FILE = entry_of(b"")


def save(run: Run, folder: Path, config_hash: str) -> None:
    """Write a checkpoint of this step; all ranks call it together."""
    world, home = run.world, folder / FOLDER
    # The buffers are rank 0's: nothing but evaluation reads them, and that broadcasts rank 0's first.
    name = _name(run.progress.step)
    writing = home / f".{name}"
    is_first = 0 in run.workers.ranks
    if is_first:
        for left in home.glob(".step-*"):  # by a process that was killed
            remove(left)
        writing.mkdir(parents=True)
    world.barrier("of a checkpoint")
    files: dict[str, Entry] = {}
    for index, rank in enumerate(run.workers.ranks):
        state = state_of_worker(run, index)
        name_of_worker = f"worker-{rank}.pt"
        files[name_of_worker] = _write(writing / name_of_worker, partial(torch.save, state))
    if is_first:
        files["shared.pt"] = _write(writing / "shared.pt", partial(torch.save, shared_state(run)))
        for record in RECORD_FILES:
            if (folder / record).is_file():
                copy = methodcaller("write", _content(folder / record))
                files[record] = _write(writing / record, copy)
    said = _texts(world, json.dumps(files))  # returns when all ranks have written their files
    if is_first:
        for text in said:
            files |= json.loads(text)
        _seal(writing, home / name, run, config_hash, files)
        run.unusable.discard(name)
        _prune(run, home)
    world.barrier("of a checkpoint")


def load(run: Run, folder: Path, config_hash: str | None) -> list[str]:
    """Continue from the newest undamaged checkpoint in a run folder, if there is one; all ranks call it.

    ``config_hash``: this run's; its record is then brought to the state of the checkpoint, and removed if
    there is none. None: the folder is another run's, any config is accepted and its record is left alone.

    Returns what the user should know. Raises UserError when the checkpoint was written by another
    config or by another number of workers, or when all are damaged.
    """
    world, is_own = run.world, config_hash is not None
    # Rank 0 decides what there is: ranks must not disagree when a network file system shows them
    # different folders.
    names, ignored = json.loads(_texts(world, json.dumps(_listed(folder / FOLDER)))[0])
    notes = []
    if ignored:
        notes.append(f"{folder / FOLDER}: ignored {', '.join(ignored)} (not a checkpoint of a run)")
    problems: dict[str, str] = {}
    for name in names:
        candidate = folder / FOLDER / name
        problem = ""
        try:
            manifest = read_manifest(candidate)
            _refuse_misfit(run, candidate, manifest, config_hash)
            states = _read(run, candidate, manifest)
            records: dict[str, bytes] = {}
            rebuilt: list[str] = []
            if is_own and 0 in run.workers.ranks:
                records, rebuilt = _records(folder, candidate, manifest[FILES])
        except (UserError, MemoryError):
            raise
        except Damaged as error:
            problem = str(error)
        except Exception as error:  # torch.load raises many kinds for a file that it does not like
            problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        said = _texts(world, problem)
        if any(said):
            by_rank = [f"{text} (rank {rank})" for rank, text in enumerate(said) if text]
            problems[name] = said[0] if len(set(said)) == 1 else "; ".join(by_rank)
            continue
        try:
            notes += restore(run, *states)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"train.resume_from: {candidate} is of another model, optimizer or compressor "
                f"({' '.join(str(error).split())[:200]})"
            ) from error
        if is_own:
            run.unusable |= problems.keys()
        else:
            begin_anew(run)
        for record, content in records.items():
            if content != _content(folder / record):
                replace(folder / record, content)
        notes += [
            f"{folder / FOLDER / other} is not used ({why}); using the one before, {name}"
            for other, why in problems.items()
        ]
        notes += [
            f"{folder / record} was damaged; it was rebuilt from {candidate}" for record in rebuilt
        ]
        return notes
    if problems:
        newest = next(iter(problems))
        raise UserError(
            f"paths.runs: no checkpoint in {folder / FOLDER} can be read; remove that folder to "
            f"start again ({newest}: {problems[newest]})"
        )
    if is_own and 0 in run.workers.ranks:
        for record in RECORD_FILES:
            (folder / record).unlink(missing_ok=True)
    return notes


def steps_saved(folder: Path) -> list[int]:
    """The steps of the complete checkpoints in a run folder, the last one at the end. Their manifests are
    checked, their files are not."""
    return sorted(map(_step, _undamaged(folder / FOLDER)))


def read_manifest(candidate: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises Damaged."""
    manifest = read_sealed(candidate / MANIFEST)
    if candidate.name != _name(manifest["step"]):
        raise Damaged(f"it is a copy of {_name(manifest['step'])}")
    return manifest


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))


def _listed(home: Path) -> tuple[list[str], list[str]]:
    """The names of checkpoints, newest first, damaged ones among them; and the names of other entries.

    Hidden entries are unfinished checkpoints and are not listed. A link is no checkpoint. Raises UserError
    where the folder itself is a link: what is removed in it would be somewhere else."""
    refuse_link(home, "paths.runs")
    names: list[str] = []
    others: list[str] = []
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        if path.name.startswith("."):
            continue
        is_named = re.fullmatch(r"step-[0-9]{8,}", path.name) and not path.is_symlink()
        is_named = is_named and path.is_dir()
        is_ours = is_named and any(f.name == MANIFEST or f.suffix == ".pt" for f in path.iterdir())
        (names if is_ours else others).append(path.name)
    return sorted(names, key=_step, reverse=True), others


def _undamaged(home: Path) -> list[str]:
    """The names of the checkpoints with an undamaged manifest, newest first."""
    found = []
    for name in _listed(home)[0]:
        with contextlib.suppress(Damaged):
            read_manifest(home / name)
            found.append(name)
    return found


def _texts(world: World, text: str) -> list[str]:
    """The text of every process. Not counted as traffic, so that it does not matter to a run's numbers how
    often it is saved."""
    if world.local == world.size:
        return [text]
    return world.tell(text, purpose=None)


class _Hashed(io.BufferedWriter):
    """A new file. Its checksum is of what was meant, not of what a disk made of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return super().write(data)


def _write(path: Path, write: Callable[[Any], object]) -> Entry:
    try:
        with writing(path), _Hashed(path) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell(), file.sha256.hexdigest()
    except DiskFull:
        path.unlink(missing_ok=True)  # a part of a file only takes space
        raise


def _seal(writing: Path, final: Path, run: Run, config_hash: str, files: dict[str, Entry]) -> None:
    manifest = {
        "step": run.progress.step,
        "world_size": run.world.size,
        "config_hash": config_hash,
        FILES: files,
    }
    replace(writing / MANIFEST, sealed(manifest))
    old: Path | None = None
    if final.name in _listed(final.parent)[0]:
        old = final.rename(_hidden(final))
    elif final.exists():  # somebody else's
        final.rename(Path(tempfile.mkdtemp("", f"{final.name}-moved-", final.parent)) / final.name)
    writing.rename(final)
    if old is not None:
        shutil.rmtree(old)


def _prune(run: Run, home: Path) -> None:
    """Remove complete checkpoints older than the last ``KEPT`` that can be used."""
    now = run.progress.step
    usable = [n for n in _undamaged(home) if n not in run.unusable and _step(n) <= now]
    for name in usable[KEPT:]:
        shutil.rmtree((home / name).rename(_hidden(home / name)))


def _hidden(path: Path) -> Path:
    """Where a checkpoint goes before it is removed: a process that is killed meanwhile leaves no half."""
    return path.with_name(f".{path.name}.old")


def _refuse_misfit(
    run: Run, candidate: Path, manifest: dict[str, Any], config_hash: str | None
) -> None:
    """Raise UserError when a complete checkpoint is not this run's."""
    saved, saved_hash = manifest["world_size"], manifest["config_hash"]
    refuse_first_of(
        {
            f"paths.runs: {candidate} was written by another config (hash {saved_hash}, this run is "
            f"{config_hash}); give another folder, or remove it to start again": config_hash
            not in (None, saved_hash),
        }
    )
    workers = run.world.size
    refuse_reshard(str(candidate), run.exchange.states(), saved, workers, run.settings.reshard)


def _read(
    run: Run, candidate: Path, manifest: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The shared state, and one state for each worker hosted here. Raises Damaged.

    A rank reads, and compares with the checksums, what it needs; of the rest it looks at the sizes."""
    files, saved = manifest[FILES], manifest["world_size"]
    for name, (size, _) in files.items():
        path = candidate / name
        if name not in RECORD_FILES and not (path.is_file() and path.stat().st_size == size):
            raise Damaged(f"{name} is missing or truncated")
    shared = _load(candidate / "shared.pt", files)
    if saved == run.world.size:
        return shared, [_load(candidate / f"worker-{rank}.pt", files) for rank in run.workers.ranks]
    old = [_load(candidate / f"worker-{rank}.pt", files) for rank in range(saved)]
    parts = []
    # A worker that has skipped all of its steps has no momentum.
    inner = [structure(state[INNER]["state"]) for state in old if INNER in state]
    if inner and all(one == inner[0] for one in inner):
        parts.append(INNER)
    if all(state.get(OWN) for state in old):
        parts.append(OWN)
    mean = {part: mean_of([state[part] for state in old]) for part in parts}
    mean["exchange"] = saved_states.mean_of([state["exchange"] for state in old])
    return shared, [deepcopy(mean) for _ in run.workers.ranks]


def _load(path: Path, files: dict[str, Entry]) -> dict[str, Any]:
    with opened(path) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != files[path.name][1]:
            raise Damaged(f"{path.name} {OTHER}")
        if zipfile.is_zipfile(file):
            parts = zipfile.ZipFile(file).infolist()
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
                raise Damaged(f"{path.name} is compressed, which torch.save never does")
        file.seek(0)
        return load_data(file, path.name)


def load_data(file: Any, name: str) -> dict[str, Any]:
    """Load what torch.save has written, without running code. Raises Damaged where that is impossible:
    torch's message advises ``weights_only=False``, which would run the code."""
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Damaged(
            f"{name} is not loaded: it is damaged, or holds other things than tensors and plain values, and "
            "loading these could run code"
        ) from error
    return state


def _records(
    folder: Path, candidate: Path, files: dict[str, Entry]
) -> tuple[dict[str, bytes], list[str]]:
    """The files of the record as they were at the checkpoint's step, with the notes that came after it, which
    are history; and the names of those that are rebuilt from the checkpoint's copy.

    Raises Damaged when the copy is damaged too."""
    found, rebuilt = {}, []
    for name in RECORD_FILES:
        size, digest = files.get(name, NO_FILE)
        here, copy = (_content(path / name) for path in (folder, candidate))
        if hashlib.sha256(here[:size]).hexdigest() == digest:
            found[name] = after(here, size)
        elif hashlib.sha256(copy[:size]).hexdigest() == digest:
            found[name] = copy[:size]
            rebuilt.append(name)
        else:
            raise Damaged(f"{folder / name} is damaged, and so is the copy in the checkpoint")
    return found, rebuilt


def _content(path: Path) -> bytes:
    """The content of a file of the record; empty for a link, which a file then replaces."""
    try:
        with opened(path) as file:
            return file.read()
    except (OSError, UserError):
        return b""
