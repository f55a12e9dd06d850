"""Runs in, an artifact's folder out: ``<root>/<paper>/<scale>/<artifact>/`` beside the pool of its runs.

``<root>`` is reproduced/ or, for published results, results/. A folder holds table.md and figures. The
verdicts of the artifact, the ids of its runs and its numbers are in files of the pool. `rebuild` makes all of
it again from the runs of the pool.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from dgc_repro import files
from dgc_repro.errors import UserError
from dgc_repro.names import git, installed_papers
from dgc_repro.paper import page, pool
from dgc_repro.paper.claims import Paper
from dgc_repro.paper.facts import IN_HISTORY
from dgc_repro.paper.page import Page
from dgc_repro.paper.records import Run
from dgc_repro.paper.screen import OtherScale
from dgc_repro.paper.verdict import UNTESTED


def package_of(paper: str) -> str:
    """The package with a paper's artifacts: that of an entry point, ours, or one of the paper's own name that
    Python finds (in the working folder, say)."""
    if found := installed_papers().get(paper):
        return found
    ours = f"{__package__}.{paper}"
    return paper if not _folders(ours) and _folders(paper) else ours


def own_conf_of(paper: str) -> Path | None:
    """The folder ``conf`` in the package of a paper that is not ours."""
    name = package_of(paper) if paper.isidentifier() else ""
    if not name or name.startswith(f"{__package__}."):
        return None
    folders = [Path(place) / "conf" for place in _folders(name)]
    return next((folder for folder in folders if folder.is_dir()), None)


def _folders(package: str) -> list[str]:
    """The folders of a package that Python finds, also in the working folder; none where it finds none."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    spec = importlib.util.find_spec(package)
    return list((spec and spec.submodule_search_locations) or ())


def artifact_of(paper: str, artifact: str) -> Any:
    """The module of an artifact, or its entry in ``ARTIFACTS`` of a module for several, which the paper's
    ``MODULES`` names: ``page(runs, scale)`` makes its page. Raises UserError where there is none."""
    package = package_of(paper)
    several = getattr(_imported(package), "MODULES", {})
    module = f"{package}.{several.get(artifact, artifact)}"
    loaded = _imported(module)
    if loaded is None:
        raise UserError(
            f"{paper}/{artifact}: no module {package}.{artifact}; write it (docs/adding-a-paper.md), or "
            "correct the name"
        )
    found = getattr(loaded, "ARTIFACTS", {}).get(artifact, loaded)
    if not callable(getattr(found, "page", None)):
        raise UserError(f"{module}: it has no page; write it (docs/adding-a-paper.md)")
    return found


def _imported(module: str) -> Any:
    """A module of a paper; None where there is none. Raises UserError for a mistake in it."""
    try:
        return importlib.import_module(module)
    except (UserError, ValueError, TypeError) as error:  # a mistake in a paper's claims or numbers
        raise UserError(f"{module}: {error}") from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            return None
        if module.startswith(f"{__package__}."):
            raise
        steps = traceback.extract_tb(error.__traceback__)
        lines = [step.lineno for step in steps if module.split(".")[0] in Path(step.filename).parts]
        line = f", line {lines[-1]}" if lines else ""  # a SyntaxError names its line itself
        raise UserError(f"{module}{line}: {type(error).__name__}: {error}") from error


def pools_of(paper: str, artifact: str) -> tuple[str, ...]:
    """The ``experiment.artifact`` that an artifact's runs may have: its ``POOL``, where it shares them with
    others, and those of ``ALSO``, whose runs it uses too."""
    module = artifact_of(paper, artifact)
    return (getattr(module, "POOL", artifact), *getattr(module, "ALSO", ()))


def published(root: Path, paper: str, scale: str) -> dict[str, Run]:
    """The runs of a pool by id; none where there is no pool."""
    folder = root / paper / scale
    if not (folder / pool.RUNS_FILE).is_file():
        return {}
    return {run.id: run for run in pool.read(folder)}


def publish(runs: Iterable[Run], paper: str, artifact: str, scale: str, root: Path) -> Path:
    """Add finished runs to the pool and write the artifact's folder, which is returned.

    Raises UserError for runs of another experiment or of unlike settings; nothing has changed then. Runs that
    no artifact of the pool names any more are dropped from it.
    """
    runs = list(runs)
    if not runs:
        raise UserError(
            f"experiment: at least one finished run of {paper}/{artifact} at scale {scale}, got none; run "
            "the experiment first"
        )
    require_placed(runs, paper, artifact, scale)
    folder = root / paper / scale
    others = {name: one for name, one in pool.records(folder).items() if name != artifact}
    with _fresh(folder) as fresh:
        everything = published(root, paper, scale) | {run.id: run for run in runs}
        pool.write(with_history(everything.values()), fresh)
        # The page is made of what the pool holds, so that `rebuild` makes the same one.
        made = _page(pool.read(fresh, {run.id for run in runs}), paper, scale, artifact)
        named = {name for one in others.values() for name in one["runs"]}
        named |= {run.id for run in made.runs}
        if everything.keys() - named:
            kept = [run for name, run in everything.items() if name in named]
            _move(fresh, folder)
            pool.write(with_history(kept), fresh)
        _write(made, folder / artifact, fresh)
        _move(fresh, folder, is_dropping=bool(everything.keys() - named))
    return folder / artifact


def with_history(runs: Iterable[Run]) -> list[Run]:
    """The runs, with ``commit_in_history: false`` in each record whose commit is not in this checkout's git
    history. They are unchanged where there is no whole history."""
    known = set(git("rev-list HEAD").split())
    if not known or git("rev-parse --is-shallow-repository") != "false":
        return list(runs)

    def marked(record: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in record.items() if key != IN_HISTORY}
        if "before" in kept:
            kept["before"] = [marked(earlier) for earlier in kept["before"]]
        is_lost = kept.get("commit") and kept["commit"] not in known
        return kept | ({IN_HISTORY: False} if is_lost else {})

    return [replace(run, environment=marked(run.environment)) for run in runs]


def rebuild(folder: Path, into: Path | None = None) -> Page:
    """Make the folder of an artifact again from its pool; ``into``: write it there. Returns the page."""
    made, target = page_of(folder), into or folder
    with _fresh(target.parent) as fresh:
        _write(made, target, fresh)
        _move(fresh, target.parent)
    return made


def page_of(folder: Path) -> Page:
    """The page of an artifact's folder, made of its pool. Raises UserError where no pool names the folder."""
    paper, scale, artifact = folder.resolve().parts[-3:]
    if not is_published(folder):
        raise UserError(
            f"{folder}: the folder of an artifact, <paper>/<scale>/<artifact>; give for example "
            "results/dynamic/quick/table1"
        )
    return _page(pool.read(folder.parent, run_ids(folder)), paper, scale, artifact)


def other_scales(folder: Path, root: Path) -> list[OtherScale]:
    """The other scales at which an artifact is published below ``root``, with the claims that were tested
    there; the shortest first. A damaged pool is left out: it must not cost a page that is finished."""
    paper, scale, artifact = folder.resolve().parts[-3:]
    found = []
    for place in sorted((root / paper).glob("*")):
        with contextlib.suppress(UserError):
            if place.name != scale and (record := pool.records(place).get(artifact)):
                claims = {v["claim"] for v in record["verdicts"] if v["verdict"] not in UNTESTED}
                summaries = pool.summaries(place)
                if summaries.keys() >= set(record["runs"]):
                    own = [summaries[run] for run in record["runs"]]
                    seconds = sum(one.get("time/train_seconds", 0.0) for one in own)
                    found.append(OtherScale(place.name, frozenset(claims), seconds))
    return sorted(found, key=lambda one: one.seconds)


def artifacts_in(folder: Path) -> list[Path]:
    """The folders of artifacts in a pool, by name."""
    return [folder / artifact for artifact in pool.records(folder)]


def is_published(folder: Path) -> bool:
    """Whether a pool has an artifact with this folder."""
    return folder.name in pool.records(folder.parent)


def run_ids(folder: Path) -> list[str]:
    """The runs of an artifact, by its folder."""
    return list(pool.records(folder.parent)[folder.name]["runs"])


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """A folder for new files of a pool, removed at the end. Only one process is here at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh, lock = folder / ".new", folder / ".lock"
    if lock.is_symlink() or lock.is_dir():
        raise UserError(f"{lock}: is a link or a folder in the place of the pool's lock; remove it")
    with FileLock(lock):
        files.remove(fresh)  # of a killed process
        try:
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _page(runs: Sequence[Run], paper: str, scale: str, artifact: str) -> Page:
    made: Page = artifact_of(paper, artifact).page(runs, scale)
    package = importlib.import_module(package_of(paper))
    source: Paper | None = getattr(package, "PAPER", None)
    cited = source.cited if source else (package.__doc__ or "").partition("\n")[0]
    return replace(made, facts=(("source", cited), *made.facts)) if cited else made


def _write(made: Page, folder: Path, fresh: Path) -> None:
    """Write an artifact into ``fresh``: its folder, and its part of the pool's verdicts and numbers."""
    (fresh / folder.name).mkdir(parents=True)
    page.write(made, fresh / folder.name)
    records = pool.records(folder.parent) | {folder.name: page.record(made)}
    text = json.dumps(dict(sorted(records.items())), indent=1, ensure_ascii=False) + "\n"
    (fresh / pool.VERDICTS_FILE).write_text(text, encoding="utf-8", newline="\n")
    before = pool.numbers(folder.parent)
    own = page.numbers(made).to_csv(index=False, float_format="%.10g")
    new = pool.as_text(own.encode())
    new.insert(0, "artifact", folder.name)
    numbers = pd.concat([before[before["artifact"] != folder.name], new])
    numbers = numbers.sort_values("artifact", kind="stable")
    numbers.to_csv(fresh / pool.NUMBERS_FILE, index=False, lineterminator="\n")


def require_placed(runs: Iterable[Run], paper: str, artifact: str, scale: str) -> None:
    """Raise UserError for a run that the page of an artifact does not take."""
    names = pools_of(paper, artifact)
    for run in runs:
        place = (run.setting("experiment.paper"), run.setting("experiment.artifact"), run.scale)
        if place not in [(paper, name, scale) for name in names]:
            raise UserError(
                f"experiment: {paper}/{artifact} takes runs of {paper}/{' or '.join(names)}/{scale}, got "
                f"{'/'.join(map(str, place))} in {run.id}; its experiment needs paper: {paper} and artifact: "
                f"{names[0]}, or publish it under its own name"
            )


def _move(fresh: Path, folder: Path, *, is_dropping: bool = False) -> None:
    """Replace a pool's files and an artifact's folder by those of ``fresh``, whose runs are those of the pool
    and new ones, or, ``is_dropping``, some of the pool's.

    A process that is killed here loses no run: the verdicts, which name runs, come after the runs, and these
    after their tables. Where runs are dropped, the order is the reverse. Until all are there, a file may have
    its old checksum or the new one."""
    new = sorted(path.name for path in fresh.iterdir() if path.name != pool.SUMS_FILE)
    sums = pool.checksums(fresh)
    old = pool.checksums(folder) if sums else {}
    either = {name: {*old.get(name, ()), *sums.get(name, ())} for name in {*old, *sums}}
    if old:
        pool.write_checksums(folder, {name: own for name, own in either.items() if name in old})
    order = [pool.RUNS_FILE, pool.VERDICTS_FILE]  # after all others
    new.sort(key=lambda name: order.index(name) if name in order else -1, reverse=is_dropping)
    for name in new:
        if name == pool.RUNS_FILE:
            pool.write_checksums(folder, either)
        if (fresh / name).is_dir():
            files.remove(folder / name)
        (fresh / name).replace(folder / name)
    if sums:
        pool.write_checksums(folder, sums)
        for name in set(pool.FILES) - sums.keys():
            (folder / name).unlink(missing_ok=True)
