"""``record`` makes a record of finished runs (paper/leaderboard.py); ``verify-record`` trains a seed again.

A record's config is that of a target's recipe with a method in it: it may differ in ``may_differ`` of
conf/records.yaml alone, and its components are those of this package. `verify_record` takes these keys from a
record and everything else from the recipe, so that a record brings no path, data set or code of its own.
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from dgc_repro.errors import UserError
from dgc_repro.launch.cli_args import read, some_text
from dgc_repro.launch.identity import differing, outside, run_folder
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.paths import writing_to
from dgc_repro.launch.ranks import RunFailed
from dgc_repro.launch.sections import check_seed
from dgc_repro.launch.single import check, refuse_slurm, train_in
from dgc_repro.launch.typed import nearest
from dgc_repro.paper import leaderboard, pool
from dgc_repro.paper.leaderboard import Record, Rules, Target, reached
from dgc_repro.paper.records import Run, in_order, read_run

OF_A_MACHINE = ("seed", "experiment", "scale", "stopping", "launch")
"""Keys that may differ too, as they change nothing that a record counts; but ``launch.workers``."""
OWN_GROUPS = ("dataset", "launch", "paths", "sink")
"""Where the machine that verifies has its data and runs, and how it trains."""
MOST_ROWS = 5  # of a pool that an error names


def _seed(key: str, text: str) -> int:
    """A whole number from 0."""
    value = int(text) if text.isdecimal() else text
    check_seed(key, value)
    return int(value)


KEYS = {
    "name": (some_text, None, "What follows the target in its name; the compressor, unless given."),
    "by": (some_text, None, "Who submits the record."),
    "row": (some_text, None, "The row to take where a folder is a pool of published runs."),
    "into": (some_text, "results/records", "The folder of all records."),
}
VERIFY_KEYS = {"seed": (_seed, 0, "The seed to train; the record need not have it.")}


def record(arguments: Sequence[str]) -> None:
    """``arguments``: run folders, or a pool of published runs with ``row=``; and `KEYS`. Without a folder it
    checks all records and writes their page again. Raises UserError; nothing has changed then."""
    places, given = _places_apart(arguments)
    own, _ = read(given, "record [<run folder> ...]", KEYS, ())
    rules, root = Rules.read(), Path(own["into"])
    if not places and not root.is_dir():
        raise UserError(f"into: no folder {root}; give finished run folders to begin it")
    records = [checked(folder, rules) for folder in leaderboard.folders(root)]
    made = _made(places, own, rules) if places else None
    if made and (root / made.name).exists():
        raise UserError(f"name: {root / made.name} is there already; give another name")
    records += [made] if made else []
    page = leaderboard.page(records, rules)
    with writing_to("into", root):
        if made:
            _write(made, root, rules)
            sent = f"{made.bytes.mean:,.0f} wire bytes to the target"
            print(f"{root / made.name}: {sent}, n = {made.bytes.n}")
        file = root / leaderboard.PAGE_FILE
        file.write_text(page, encoding="utf-8", newline="\n")
    print(f"{file}: records checked: {len(records)}")


def verify_record(arguments: Sequence[str]) -> None:
    """``arguments``: the folder of a record, `VERIFY_KEYS`, and settings in `OWN_GROUPS`. Trains the seed
    below ``<paths.runs>/verified``. Raises UserError, and RunFailed where the run does not confirm it."""
    places, given = _places_apart(arguments)
    own, overrides = read(given, "verify-record <folder>", VERIFY_KEYS, OWN_GROUPS)
    if len(places) != 1:
        like = "the folder of one record, such as results/records/low-dense"
        raise UserError(f"verify-record: {like}, got {len(places)} folders")
    rules = Rules.read()
    known = checked(places[0], rules)
    recipe = composed([*known.target.run, *overrides])
    config = overlaid(recipe, known.runs[0].config, rules.may_differ)
    config["seed"] = own["seed"]
    config["experiment"] = {"paper": "none", "artifact": "custom", "row": known.name}
    config["paths"]["runs"] = str(Path(config["paths"]["runs"], "verified"))
    _refuse_differing(config, known.target, rules)
    check(config, overrides)
    refuse_slurm(config)
    again = read_run(train_in(run_folder(config), config, None))
    print(confirmed(known, again), flush=True)


def confirmed(known: Record, again: Run) -> str:
    """Return in words how a run that was trained again confirms a record. Raises RunFailed where it does not:
    it misses the target, or sends more to it than the record's largest seed and the share ``more_bytes``."""
    target, rules = known.target, known.rules
    epoch, sent = reached(again, target, rules.workers)
    found = f"in epoch {epoch} after {sent:,.0f} wire bytes" if epoch else "not reached"
    said = f"{known.name}, seed {again.seed}: {target.metric} {target.bound:g} {found}"
    most = (1 + rules.more_bytes) * max(one for _, one in known.reached)
    if not sent <= most:
        raise RunFailed(
            f"{said}; not confirmed: at most {most:,.0f} bytes would confirm it. Another CPU or torch "
            "rounds differently: try another seed"
        )
    first = next((run for run in known.runs if run.seed == again.seed), None)
    if first is None:
        return f"{said}; confirmed by a seed that the record does not have"
    before, after = (run.epochs[target.metric].to_numpy(float) for run in (first, again))
    if (before == after).all():
        return f"{said}; confirmed: the same curve, value for value"
    largest = float(np.abs(before - after).max())
    return (
        f"{said}; confirmed: curves differ by up to {largest:.3g} (another CPU, torch or version)"
    )


def checked(folder: Path, rules: Rules) -> Record:
    """Read a record and check all of it but its place among others. Raises UserError."""
    found = leaderboard.read(folder, rules)
    try:
        _refuse_differing(found.runs[0].config, found.target, rules)
        if not found.name.startswith(f"{found.target.name}-"):
            raise UserError(f"name: begins with its target, {found.target.name}-; rename it")
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    return found


def overlaid(
    recipe: Mapping[str, Any], config: Mapping[str, Any], keys: Sequence[str]
) -> dict[str, Any]:
    """Return the recipe's config with the values of these dotted keys from another config. A key in a section
    that this other one lacks came later and keeps the recipe's value. Raises LookupError for a section."""
    made = deepcopy(dict(recipe))
    for key in keys:
        *groups, last = key.split(".")
        to, of = made, config
        for group in groups:
            to, of = to[group], of.get(group, {})
        if last in of:
            to[last] = deepcopy(of[last])
        elif not groups:
            raise LookupError(f"no {last}")
    return made


@functools.cache
def _recipe(run: tuple[str, ...]) -> dict[str, Any]:
    return composed(run)


def _differing(config: Mapping[str, Any], target: Target, rules: Rules) -> list[str]:
    """The keys in which a config differs from the target's recipe and may not. Raises UserError for what is
    no config."""
    recipe = _recipe(target.run)
    try:
        same = overlaid(recipe, config, (*rules.may_differ, *OF_A_MACHINE))
        same["launch"] = {**same.get("launch", {}), "workers": recipe["launch"]["workers"]}
        return list(differing(config, same))
    except (TypeError, LookupError, AttributeError) as error:
        raise UserError(f"config: a run's resolved config, got something else ({error})") from error


def _refuse_differing(config: Mapping[str, Any], target: Target, rules: Rules) -> None:
    """Raise UserError, which names the key, unless a config is the target's recipe with a method in it."""
    if own := outside(config):
        raise UserError(
            f"{own[0]}: no component of this package, so that others cannot train the record; submit its "
            "code too (docs/adding-a-compressor.md)"
        )
    if keys := _differing(config, target, rules):
        raise UserError(
            f"{keys[0]}: differs from `{' '.join(target.run)}`, the recipe of target {target.name}; leave "
            f"it: a method may change {', '.join(rules.may_differ)}"
        )


def _made(places: Sequence[Path], own: Mapping[str, Any], rules: Rules) -> Record:
    """The record of these runs, checked; its target is the one whose recipe is nearest. Raises UserError."""
    runs = in_order(run for place in places for run in _runs_in(place, own["row"]))
    config = runs[0].config
    for run in runs:
        if run.epochs.empty or "compressor" not in run.config:
            raise UserError(f"{run.id}: a run that was trained, got a measurement; give other runs")
        if keys := list(differing(run.config, {**config, "seed": run.seed})):
            raise UserError(
                f"{keys[0]}: the same in all seeds of a record, and differs between {runs[0].id} and "
                f"{run.id}; give the runs of one setting"
            )
    target = min(rules.targets.values(), key=lambda one: len(_differing(config, one, rules)))
    _refuse_differing(config, target, rules)
    name = own["name"] or str(config["compressor"]["_target_"]).rpartition(".")[2].lower()
    if not re.fullmatch(leaderboard.NAME, name):
        raise UserError(f"name: small letters, digits, '.', '_' and '-', got {name!r}")
    found = Record(f"{target.name}-{name}", own["by"] or "", target, rules, tuple(runs))
    found.check()
    return found


def _runs_in(place: Path, row: str | None) -> list[Run]:
    """A run folder's run, or the runs of a row of a pool. Raises UserError."""
    runs = pool.read(place) if (place / pool.RUNS_FILE).is_file() else [read_run(place)]
    rows = sorted({run.row for run in runs})
    if row is None and len(rows) == 1:
        return runs
    if row not in rows:
        shown = rows if len(rows) <= MOST_ROWS else [*rows[:MOST_ROWS], "..."]
        raise UserError(f"row: a row of {place}, got {row}; {nearest(str(row), rows, shown)}")
    return [run for run in runs if run.row == row]


def _write(made: Record, root: Path, rules: Rules) -> None:
    """Write a record's folder as a whole, and only where it reads back. Raises UserError."""
    fresh = root / ".new" / made.name
    try:
        shutil.rmtree(fresh.parent, ignore_errors=True)  # of a killed process
        leaderboard.write(made, fresh)
        checked(fresh, rules)  # it compares record.json with what follows from the other files
        fresh.rename(root / made.name)
    finally:
        shutil.rmtree(fresh.parent, ignore_errors=True)


def _places_apart(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders among arguments, and the others."""
    places = [one for one in arguments if Path(one).is_dir() or not ("=" in one or one[:1] == "-")]
    return [Path(one) for one in places], [one for one in arguments if one not in places]
