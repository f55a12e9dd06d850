"""``wandb <folder> ...``: mirror finished runs to wandb from their records (docs/sweeps.md).

A run with ``sink=wandb`` is mirrored while it trains. This command does the same for a run that has finished.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import apart, check_overrides, composed
from dgc_repro.launch.ranks import RunFailed
from dgc_repro.launch.settings import component
from dgc_repro.paper.records import is_finished, read_run
from dgc_repro.sink.interface import RunInfo
from dgc_repro.sink.wandb import Wandb

OFFLINE = "wandb/offline-run-*"
"""In a run folder: where wandb writes without a network."""
USAGE = """usage: python -m dgc_repro wandb <folder> ... [sink.<key>=<value> ...]

  folder      a run folder, or a folder of run folders such as runs
  sink.<key>  a setting of sink=wandb, such as sink.mode=online or
              sink.project=mine

Each finished run is written to <run folder>/wandb (offline, the default), or
uploaded (sink.mode=online)."""


def command(arguments: Sequence[str]) -> None:
    """Mirror the finished runs in ``arguments``. Raises UserError, or RunFailed if wandb raised an error."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        sys.exit()
    settings = [argument for argument in arguments if argument.startswith("sink.")]
    check_overrides(settings)
    mirror = mirror_of(["sink=wandb", *settings])
    assert mirror is not None
    places = [Path(argument) for argument in arguments if argument not in settings]
    folders = [folder for place in places for folder in run_folders(place)]
    finished = []
    for folder in folders:
        try:
            if is_finished(folder):
                finished.append(folder)
            else:
                print(f"{folder}: not finished, left out", flush=True)
        except UserError as error:
            print(f"left out: {error}", flush=True)
    if not finished:
        raise UserError("wandb: no finished run; give run folders, such as runs/*")
    failed = 0
    for number, folder in enumerate(finished, start=1):
        print(f"[{number}/{len(finished)}] {folder}", flush=True)
        failed += not upload(mirror, folder)
    if failed:
        raise RunFailed(f"wandb: {failed} of {len(finished)} runs were not mirrored completely")
    if line := sync_line(finished):
        print(line)


def sync_line(folders: Sequence[Path]) -> str | None:
    """A line that says where these runs' offline copies are, and how to upload them; None where no run has a
    copy that waits for it."""
    copies = [path for folder in folders for path in folder.glob(OFFLINE) if not synced(path)]
    if not copies:
        return None
    runs = list(dict.fromkeys(path.parents[1] for path in copies))
    if len(runs) == 1:
        where, command = runs[0] / "wandb", f"wandb sync {runs[0] / OFFLINE}"
        return f"wandb: the offline copy is in {where}; upload it with: {command}"
    places = " ".join(
        str(parent / "*" / OFFLINE) for parent in dict.fromkeys(r.parent for r in runs)
    )
    return f"wandb: {len(runs)} runs have offline copies; upload them with: wandb sync {places}"


def synced(copy: Path) -> bool:
    """Whether `wandb sync` has uploaded an offline copy; it leaves a marker."""
    return any(copy.glob("*.wandb.synced"))


def mirror_of(given: Sequence[str]) -> Wandb | None:
    """The wandb sink that overrides ask for, checked; None if they ask for none. Raises UserError."""
    own, _ = apart(given, "sink")
    config = composed(own)["sink"]["mirror"] if own else None
    made = component(config, "sink") if config else None
    if not isinstance(made, Wandb):
        return None
    made.check()
    return made


def run_folders(place: Path) -> list[Path]:
    """The folder itself if it is a run folder, else the run folders in it, without links. Raises UserError if
    none."""
    if (place / "config.yaml").is_file():
        return [place]
    found = sorted(path.parent for path in place.glob("*/config.yaml"))
    if found := [folder for folder in found if not folder.is_symlink()]:
        return found
    raise UserError(
        f"{place}: no run folder, and none in it; settings are written sink.<key>=<value>"
    )


def upload(mirror: Wandb, folder: Path) -> bool:
    """Mirror one finished run; False if wandb raised an error. Raises UserError for a damaged record."""
    run = read_run(folder)
    epochs, steps = len(run.epochs), int(run.summary.get("steps", 0))
    info = RunInfo(
        folder=folder,
        name=folder.name,
        config=run.config,
        environment=run.environment,
        num_steps=steps,
        num_epochs=epochs,
        start_step=steps,
        start_epoch=epochs,
    )
    return replace(mirror).upload(info, run.summary)


def finished_before(config: Mapping[str, Any], folder: Path) -> None:
    """With ``sink=wandb`` and a run that had finished before: print the command that mirrors it.

    Inside a wandb sweep the record is uploaded at once, because the sweep waits for the metrics of the run
    that its agent has started."""
    mirror = component(config["sink"]["mirror"], "sink") if config["sink"]["mirror"] else None
    if not isinstance(mirror, Wandb):
        return
    if os.environ.get("WANDB_SWEEP_ID"):
        upload(mirror, folder)
    else:
        print(f"not mirrored: python -m dgc_repro wandb {folder} does it", flush=True)
