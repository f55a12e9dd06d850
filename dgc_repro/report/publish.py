"""Run folders in, an artifact's folder out: records, tables, figures, verdicts.

``<paper>/<artifact>/<scale>/`` below reproduced/ or, where it is published, results/ is written beside
its old self and swapped in whole, so that nothing stale stays and a failure leaves the old one as it was.
``rebuild`` makes the same files again from the records alone, byte for byte.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from matplotlib.figure import Figure
from rich.console import Console

from dgc_repro.errors import UserError
from dgc_repro.paper.gravac_training import POOL
from dgc_repro.report import (
    allreduce,
    decisions,
    density,
    figures,
    gravac_accordion,
    gravac_factors,
    gravac_gains,
    gravac_lab,
    gravac_quality,
    gravac_randomk,
    gravac_table1,
    gravac_target,
    gravac_variance,
    language,
    multilevel,
    multilevel_render,
    render,
    saturation,
    scaling,
    sensitivity,
    study,
    style,
    table,
    waiting,
)
from dgc_repro.report.records import (
    EPOCHS_FILE,
    EPOCHS_TABLE,
    MEASUREMENT_FILES,
    RECORD_FILES,
    STUDY_FILES,
    Measurement,
    Run,
    load_measurements,
    load_runs,
    load_studies,
    read_epoch_lines,
    read_epochs,
)
from dgc_repro.report.verdict import PAPER_SCALE

LIMIT_BYTES = 2_000_000
LONG_RUNS = 10
"""So many times the limit at the paper's scale, where a pool's runs have hundreds of epochs."""
DECISION_STEPS = 6_000
"""Steps of decisions in one published folder, of all its runs together: half a megabyte."""
RECORDS = "records"
Draw = Callable[[Sequence[Any], str], Figure]
"""A figure of records at a scale."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """How one published artifact is made: ``write`` into a folder, ``show`` on a console.

    ``load``: finished records and messages about others; ``files``: what a record consists of;
    ``pool``: the (paper, artifact) whose runs it is made of, where those are not its own: several
    artifacts are made of them, and none is trained twice."""

    write: Callable[[Sequence[Any], str, Path], None]
    show: Callable[[Sequence[Any], str, Console], None]
    load: Callable[[Sequence[Path]], tuple[Sequence[Any], list[str]]] = load_runs
    files: tuple[str, ...] = RECORD_FILES
    pool: tuple[str, str] | None = None


def _write_table1(runs: Sequence[Run], scale: str, folder: Path) -> None:
    built = table.build(runs, scale)
    _write(folder / "table.md", render.markdown(built))
    _write(folder / "table.csv", render.csv_text(built))
    _write(folder / "verdicts.json", render.verdicts_json(built.verdicts))
    for name, figure in figures.table1_figures(runs, scale).items():
        style.save(figure, folder, name)


def _show_table1(runs: Sequence[Run], scale: str, console: Console) -> None:
    render.print_table(table.build(runs, scale), console)


def _write_sensitivity(runs: Sequence[Run], scale: str, folder: Path) -> None:
    study = sensitivity.build(runs, scale)
    _write(folder / "table.md", sensitivity.markdown(study))
    _write(folder / "table.csv", sensitivity.csv_text(study))
    style.save(sensitivity.figure(study, runs), folder, "sensitivity")


def _show_sensitivity(runs: Sequence[Run], scale: str, console: Console) -> None:
    console.print(sensitivity.markdown(sensitivity.build(runs, scale)), markup=False)


def _write_table3(measurements: Sequence[Measurement], scale: str, folder: Path) -> None:
    built = multilevel.build(measurements, scale)
    _write(folder / "table.md", multilevel_render.markdown(built))
    _write(folder / "table.csv", multilevel_render.csv_text(built))
    _write(folder / "verdicts.json", render.verdicts_json(built.verdicts))
    style.save(multilevel_render.figure(built), folder, "table3")


def _show_table3(measurements: Sequence[Measurement], scale: str, console: Console) -> None:
    multilevel_render.print_table(multilevel.build(measurements, scale), console)


def _write_ptb(runs: Sequence[Run], scale: str, folder: Path) -> None:
    built = language.build(runs, scale)
    _write(folder / "table.md", language.markdown(built))
    _write(folder / "table.csv", language.csv_text(built))
    _write(folder / "verdicts.json", render.verdicts_json(built.verdicts))
    style.save(language.figure(runs, scale), folder, "perplexity")


def _show_ptb(runs: Sequence[Run], scale: str, console: Console) -> None:
    language.print_table(language.build(runs, scale), console)


class PageReport(Protocol):
    """A module of report/: the page and the figure of records, which are runs or parts of a study."""

    def page(self, records: Sequence[Any], scale: str, /) -> study.Page: ...
    def figure(self, records: Sequence[Any], scale: str, /) -> Figure: ...


def _computed(report: PageReport, figure_name: str) -> Artifact:
    """The artifact of a study."""
    return _paged(report, figure_name, load_studies, STUDY_FILES)


def _trained(
    report: PageReport,
    figure_name: str,
    pool: tuple[str, str] | None = None,
    others: Mapping[str, Draw] = MappingProxyType({}),
) -> Artifact:
    """The artifact of trained runs, its own or a pool's; ``others``: figures beside its own, by name."""
    return _paged(report, figure_name, load_runs, RECORD_FILES, pool, others)


def _paged(
    report: PageReport,
    figure_name: str,
    load: Callable[[Sequence[Path]], tuple[Sequence[Any], list[str]]],
    files: tuple[str, ...],
    pool: tuple[str, str] | None = None,
    others: Mapping[str, Draw] = MappingProxyType({}),
) -> Artifact:
    def write(records: Sequence[Any], scale: str, folder: Path) -> None:
        page = report.page(records, scale)
        _write(folder / "table.md", study.markdown(page))
        _write(folder / "table.csv", study.csv_text(page))
        _write(folder / "verdicts.json", render.verdicts_json(page.verdicts))
        for name, draw in {figure_name: report.figure, **others}.items():
            style.save(draw(records, scale), folder, name)

    def show(records: Sequence[Any], scale: str, console: Console) -> None:
        study.print_page(report.page(records, scale), console)

    return Artifact(write, show, load, files, pool)


ARTIFACTS = {
    ("dynamic", "table1"): Artifact(_write_table1, _show_table1),
    ("dynamic", "sensitivity"): Artifact(_write_sensitivity, _show_sensitivity),
    ("gravac", "table3"): Artifact(
        _write_table3, _show_table3, load_measurements, MEASUREMENT_FILES
    ),
    ("lecture", "ptb"): Artifact(_write_ptb, _show_ptb),
    ("gravac", "table1"): _computed(gravac_table1, "table1"),
    ("gravac", "fig1a"): _computed(scaling, "fig1a"),
    ("gravac", "fig3"): _computed(saturation, "fig3"),
    ("gravac", "lab"): _trained(gravac_lab, "lab"),
    ("lecture", "allreduce"): _computed(allreduce, "allreduce"),
    ("lecture", "density"): _computed(density, "density"),
    ("lecture", "waiting"): _computed(waiting, "waiting"),
    ("gravac", "table2"): _trained(gravac_quality, "table2", POOL),
    ("gravac", "table4"): _trained(gravac_accordion, "table4", POOL),
    ("gravac", "fig2"): _trained(gravac_target, "fig2", POOL),
    ("gravac", "fig1b"): _trained(gravac_variance, "fig1b", POOL),
    **{("gravac", name): _trained(made, name, POOL) for name, made in gravac_gains.FIGURES.items()},
    **{
        ("gravac", name): _trained(made, name, POOL, {"regret": made.regret})
        for name, made in gravac_factors.FIGURES.items()
    },
    ("gravac", "fig11"): _trained(gravac_randomk, "fig11", POOL),
}
"""What can be published, by (paper, artifact)."""


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _artifact(paper: str, artifact: str) -> Artifact:
    try:
        return ARTIFACTS[paper, artifact]
    except KeyError:
        known = ", ".join("/".join(key) for key in ARTIFACTS)
        raise UserError(
            f"experiment.artifact: one of {known}, got {paper}/{artifact}; see docs"
        ) from None


def pool_of(paper: str, artifact: str) -> tuple[str, str]:
    """(paper, artifact) that the runs of an artifact say they belong to. UserError if there is none."""
    return _artifact(paper, artifact).pool or (paper, artifact)


def _require_placed(
    runs: Sequence[Run | Measurement], paper: str, artifact: str, scale: str
) -> None:
    wanted = (*pool_of(paper, artifact), scale)
    if not runs:
        raise UserError(
            f"experiment: at least one finished run of {paper}/{artifact} at scale {scale}, "
            "got none; run the experiment first"
        )
    for run in runs:
        place = (run.setting("experiment.paper"), run.setting("experiment.artifact"), run.scale)
        if place != wanted:
            raise UserError(
                f"experiment: runs of {'/'.join(wanted)}, got "
                f"{'/'.join(map(str, place))} in {run.folder}; publish it under its own name"
            )


def copy_record(
    source: Path,
    target: Path,
    files: Sequence[str] = RECORD_FILES,
    *,
    as_table: bool = False,
    most_decisions: int = decisions.MOST_STEPS,
) -> None:
    """Copy a run's record: metrics by epoch only, decisions of so many steps, no checkpoints.

    ``as_table``: metrics as a table, a third of the bytes, for artifacts of many runs."""
    target.mkdir(parents=True)
    for name in files:
        if name == EPOCHS_FILE:
            if as_table or not (source / name).is_file():
                table = read_epochs(source)
                text = table.to_csv(index=False, float_format="%.9g", lineterminator="\n")
                _write(target / EPOCHS_TABLE, text)
            else:
                _write(target / name, "\n".join(read_epoch_lines(source / name)) + "\n")
        elif name == decisions.TABLE_FILE:
            decided = decisions.read(source)
            if not decided.empty:
                decisions.write(decisions.thinned(decided, most_decisions), target / name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _as_published(
    made_by: Artifact, fresh: Path, runs: Sequence[Run | Measurement]
) -> list[Run | Measurement]:
    """The runs as their records have them, so that these alone make the same files again."""
    folders = {run.name: run.folder for run in runs}
    written, _ = made_by.load(_records(fresh))
    return [replace(run, folder=folders[run.name]) for run in written]


def _decides(run: Run | Measurement) -> bool:
    return isinstance(run, Run) and not run.decisions.empty


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _swap(fresh: Path, folder: Path) -> None:
    """Put ``fresh`` in the place of ``folder``; the old one goes last."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _make(sources: Sequence[Path], paper: str, artifact: str, scale: str, folder: Path) -> Path:
    made_by = _artifact(paper, artifact)
    runs, skipped = made_by.load(sources)
    for message in skipped:
        log.warning(message)
    _require_placed(runs, paper, artifact, scale)
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        deciding = sum(_decides(run) for run in runs)
        for run in runs:
            if (fresh / RECORDS / run.name).exists():
                raise UserError(f"run: a name of its own for every run, got {run.name} twice")
            copy_record(
                run.folder,
                fresh / RECORDS / run.name,
                made_by.files,
                as_table=made_by.pool is not None,
                most_decisions=min(decisions.MOST_STEPS, DECISION_STEPS // max(1, deciding)),
            )
        made_by.write(_as_published(made_by, fresh, runs), scale, fresh)
        size, limit = _size(fresh), LIMIT_BYTES
        if made_by.pool is not None and scale == PAPER_SCALE:
            limit *= LONG_RUNS
        if size > limit:
            raise UserError(
                f"results: at most {limit / 1e6:g} MB an artifact, got {size / 1e6:.1f} MB "
                f"from {len(runs)} runs; publish fewer seeds"
            )
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def publish(
    run_folders: Sequence[Path], paper: str, artifact: str, scale: str, results: Path
) -> Path:
    """Write ``<results>/<paper>/<artifact>/<scale>/`` from finished runs; returns that folder.

    Unfinished runs are left out with a logged message. UserError for a broken record, for runs of
    another experiment or of unlike settings, and for more than 2 MB.
    """
    return _make(run_folders, paper, artifact, scale, results / paper / artifact / scale)


def _place(folder: Path) -> tuple[str, str, str]:
    parts = folder.resolve().parts[-3:]
    if len(parts) < 3 or not (folder / RECORDS).is_dir():
        raise UserError(
            f"{folder}: a published folder <paper>/<artifact>/<scale> with {RECORDS}/, got none; "
            "give for example results/dynamic/table1/quick"
        )
    return parts[0], parts[1], parts[2]


def _records(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / RECORDS).iterdir() if path.is_dir())


def rebuild(folder: Path) -> Path:
    """Make every table and figure of a published folder again from the folder's records alone."""
    paper, artifact, scale = _place(folder)
    return _make(_records(folder), paper, artifact, scale, folder.resolve())


def show(folder: Path, console: Console) -> None:
    """Print a published folder's table from its records."""
    paper, artifact, scale = _place(folder)
    made_by = _artifact(paper, artifact)
    runs, _ = made_by.load(_records(folder))
    _require_placed(runs, paper, artifact, scale)
    made_by.show(runs, scale, console)
