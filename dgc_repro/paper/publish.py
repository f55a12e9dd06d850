"""Runs in, an artifact's folder out: ``<root>/<paper>/<scale>/<artifact>/`` beside the pool of its runs.

``<root>`` is reproduced/ or, for published results, results/. A folder holds table.md, table.csv,
verdicts.json (with the ids of the runs) and figures. `rebuild` makes the same files from the pool alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from dgc_repro.errors import UserError
from dgc_repro.names import PAPERS, git
from dgc_repro.paper import page, pool
from dgc_repro.paper.facts import IN_HISTORY
from dgc_repro.paper.page import VERDICTS_FILE, Page
from dgc_repro.paper.records import Run


def package_of(paper: str) -> str:
    """The package with a paper's artifacts: that of an entry point, ours, or one of the paper's own name that
    Python finds (in the working folder, say)."""
    for point in importlib.metadata.entry_points(group=PAPERS):
        if point.name == paper:
            return point.value
    ours = f"{__package__}.{paper}"
    is_ours = importlib.util.find_spec(ours) is not None
    return paper if not is_ours and _found(paper) else ours


def own_conf_of(paper: str) -> Path | None:
    """The folder ``conf`` in the package of a paper that is not ours."""
    name = package_of(paper) if paper.isidentifier() else ""
    if not name or name.startswith(f"{__package__}.") or not _found(name):
        return None
    spec = importlib.util.find_spec(name)
    folders = [Path(place) / "conf" for place in (spec and spec.submodule_search_locations) or ()]
    return next((folder for folder in folders if folder.is_dir()), None)


def _found(name: str) -> bool:
    """Whether Python finds a package of this name."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def artifact_of(paper: str, artifact: str) -> Any:
    """The module of an artifact, or its entry in ``ARTIFACTS`` of a module for several, which the paper's
    ``MODULES`` names: ``page(runs, scale)`` makes its page. Raises UserError where there is none."""
    package = package_of(paper)
    try:
        several = getattr(importlib.import_module(package), "MODULES", {})
        module = f"{package}.{several.get(artifact, artifact)}"
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UserError(
            f"{paper}/{artifact}: no module {package}.{artifact}; write it (docs/adding-a-paper.md), or "
            "correct the name"
        )
    try:
        loaded = importlib.import_module(module)
    except (UserError, ValueError) as error:  # a mistake in a paper's claims or numbers
        raise UserError(f"{module}: {error}") from error
    return getattr(loaded, "ARTIFACTS", {}).get(artifact, loaded)


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
    _require_placed(runs, paper, artifact, scale)
    folder = root / paper / scale
    with _fresh(folder) as fresh:
        own = {run.id: run for run in runs}
        everything = published(root, paper, scale) | own
        pool.write(with_history(everything.values()), fresh)
        # The page is made of what the pool holds, so that `rebuild` makes the same one.
        _write(pool.read(fresh, own), paper, artifact, scale, fresh / artifact)
        _replace(fresh, folder)
        _swap(fresh / artifact, folder / artifact)
        named = {name for place in artifacts_in(folder) for name in run_ids(place)}
        if everything.keys() - named:
            kept = [run for name, run in everything.items() if name in named]
            pool.write(with_history(kept), fresh)
            _replace(fresh, folder)
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
    paper, scale, artifact = place_of(folder)
    runs = pool.read(folder.parent, run_ids(folder))
    target = into or folder
    with _fresh(target.parent) as fresh:
        made = _write(runs, paper, artifact, scale, fresh / artifact)
        _swap(fresh / artifact, target)
    return made


def page_of(folder: Path) -> Page:
    """The page of an artifact's folder, made of its pool."""
    paper, scale, artifact = place_of(folder)
    made: Page = artifact_of(paper, artifact).page(pool.read(folder.parent, run_ids(folder)), scale)
    return made


def place_of(folder: Path) -> tuple[str, str, str]:
    """(paper, scale, artifact) of an artifact's folder."""
    parts = folder.resolve().parts[-3:]
    if len(parts) < 3 or not (folder / VERDICTS_FILE).is_file():
        raise UserError(
            f"{folder}: the folder of an artifact, <paper>/<scale>/<artifact>; give for example "
            "results/dynamic/quick/table1"
        )
    return parts[0], parts[1], parts[2]


def artifacts_in(folder: Path) -> list[Path]:
    """The folders of artifacts in a pool, by name."""
    return sorted(path.parent for path in folder.glob(f"[!.]*/{VERDICTS_FILE}"))


def run_ids(folder: Path) -> list[str]:
    """The runs that an artifact's folder names."""
    record = json.loads((folder / VERDICTS_FILE).read_text(encoding="utf-8"))
    return list(record["runs"])


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """A folder for new files of a pool, removed at the end. Only one process is here at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".new-{os.getpid()}"
    with FileLock(folder / ".lock"):
        _recover(folder)
        shutil.rmtree(fresh, ignore_errors=True)  # of a killed process with our number
        try:
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            (folder / ".lock").unlink(missing_ok=True)


def _write(runs: Sequence[Run], paper: str, artifact: str, scale: str, folder: Path) -> Page:
    made: Page = artifact_of(paper, artifact).page(runs, scale)
    source = getattr(importlib.import_module(package_of(paper)), "PAPER", None)
    if source is not None:
        made = replace(made, facts=(("source", source.cited), *made.facts))
    folder.mkdir(parents=True)
    page.write(made, folder)
    return made


def _require_placed(runs: Sequence[Run], paper: str, artifact: str, scale: str) -> None:
    wanted = [(paper, pool, scale) for pool in pools_of(paper, artifact)]
    if not runs:
        raise UserError(
            f"experiment: at least one finished run of {paper}/{artifact} at scale {scale}, got none; run "
            "the experiment first"
        )
    for run in runs:
        place = (run.setting("experiment.paper"), run.setting("experiment.artifact"), run.scale)
        if place not in wanted:
            raise UserError(
                f"experiment: runs of {'/'.join(wanted[0])}, got {'/'.join(map(str, place))} in {run.id}; "
                "publish it under its own name"
            )


def _recover(folder: Path) -> None:
    """Put back what `_swap` has moved away when it was killed between its two renames."""
    for old in folder.glob(".*.old-*"):
        artifact = folder / old.name.removeprefix(".").rpartition(".old-")[0]
        if artifact.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(artifact)


def _replace(fresh: Path, folder: Path) -> None:
    """Put a new pool's files in the place of the old ones."""
    for name in (pool.RUNS_FILE, *(f"{table}.parquet" for table in pool.TABLES)):
        if (fresh / name).is_file():
            (fresh / name).replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def _swap(fresh: Path, folder: Path) -> None:
    """Put ``fresh`` in the place of ``folder``; the old one goes last."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
