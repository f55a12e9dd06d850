"""A command line without a command: one run, a sweep, or Hydra's flags such as ``--cfg job``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dgc_repro.errors import DiskFull, UserError
from dgc_repro.launch import mirror, slurm, sweep, torchrun
from dgc_repro.launch.main import answer, leave, say
from dgc_repro.launch.overrides import (
    check_overrides,
    key_of,
    plain_value,
    resolved,
    sets,
    with_profiles,
)
from dgc_repro.launch.paths import add_conf_dirs, composing, conf_dir, conf_dirs_apart
from dgc_repro.launch.ranks import SUBMITTED, RunFailed, RunStopped
from dgc_repro.launch.run import check, is_for_slurm, run_config, train_in
from dgc_repro.launch.sweep import KEY, objectives
from dgc_repro.launch.worker import read_config
from dgc_repro.paper.interfaces import counted_line


def run(execute: torchrun.Execute | None) -> None:
    """Have Hydra compose and run what the command line says. ``execute``: what trains a run, where it is not
    `run_config`'s choice."""
    if sys.argv[1:2] == [SUBMITTED]:
        train_submitted(Path(*sys.argv[2:]), execute)
        return
    added, arguments = conf_dirs_apart(sys.argv[1:])
    add_conf_dirs(added)
    settings = [a for a in arguments if a[:1] == "~" or ("=" in a and a[:1] != "-")]
    flags = [argument for argument in arguments if argument not in settings]
    with composing():
        check_overrides(settings)
        _refuse_run_dir(settings)
        settings = _with_own_sizes(with_profiles(settings))
        if set(torchrun.SWEEPS) & set(arguments):
            settings = sweep.with_choices(settings)
    sys.argv[1:] = [*settings, *flags]  # Hydra's parser wants settings in one piece

    def task(config: DictConfig) -> float | list[float] | None:
        return one_run(config, execute)

    sweep.started.clear()
    try:
        with one_line_usage():
            hydra.main(str(conf_dir()), "config", "1.3")(task)()
    except Exception as error:
        was_sweep = bool(sweep.started)
        sweep.finish()
        if was_sweep and not isinstance(error, UserError | RunFailed | DiskFull):
            why = " ".join(str(error).split())
            raise RunFailed(f"the sweep or search has no result ({why})") from error
        raise
    sweep.finish()


def _with_own_sizes(settings: list[str]) -> list[str]:
    """The settings, with ``scale=none`` for a recipe without a scale: the default would replace its sizes."""
    chosen = [one for one in settings if key_of(one) == "recipe" and one != "recipe=none"]
    return [*settings, "scale=none"] if chosen and not sets(settings, "scale") else settings


def _refuse_run_dir(settings: Sequence[str]) -> None:
    """Raise UserError for Hydra's folder of a run, where Hydra would make it and leave it empty."""
    moves = any(one.lower().lstrip("+") == "hydra.job.chdir=true" for one in settings)
    if sets(settings, "hydra.run.dir") and not moves:
        raise UserError(
            "hydra.run.dir: run folders lie below paths.runs; give paths.runs=<folder>, or add "
            "hydra.job.chdir=true to work in hydra.run.dir"
        )


class BeforeSweep(Callback):
    """Hydra's callback (conf/config.yaml): a sweep is validated as a whole before its first run."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """A mistake ends the command here: SystemExit passes Hydra, which makes warnings of other errors. So
        does a sweep that Slurm has taken."""
        taken: list[bool] = []
        code = answer(lambda: taken.append(sweep.start(config)))
        if code or taken[0]:
            leave(code)


@contextlib.contextmanager
def one_line_usage() -> Iterator[None]:
    """Wrong flags are one line too: argparse, which reads them for Hydra, would print its whole usage."""

    def refuse(parser: argparse.ArgumentParser, message: str) -> None:
        raise UserError(f"{message}; python -m dgc_repro --help lists settings, --hydra-help flags")

    before = argparse.ArgumentParser.error
    argparse.ArgumentParser.error = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    except ValueError as error:
        if isinstance(error, UserError) or "--resolve" not in str(error):
            raise
        raise UserError(str(error)) from error
    finally:
        argparse.ArgumentParser.error = before  # type: ignore[method-assign]


def one_run(
    config: DictConfig, execute: torchrun.Execute | None = None
) -> float | list[float] | None:
    """What Hydra calls for each composed config; of a sweep, in whatever process its launcher has started."""
    # Unresolved: an override may hold an interpolation that is wrong, which `resolved` reports.
    hydra_config = HydraConfig.get()
    given: Any = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    given = sweep.with_compressor(given, hydra_config.runtime.choices)
    if hydra_config.mode == RunMode.MULTIRUN:
        try:
            return sweep.one_of_sweep(config, given, run_config)
        except RunStopped as stop:
            leave(say(str(stop), 128 + stop.signal_number))

    def run() -> None:
        plain = resolved(config)
        objectives(plain_value(config, KEY), plain)
        report_run(plain, given, execute)

    if code := answer(run):
        leave(code)
    return None


def report_run(config: dict[str, Any], given: list[str], execute: torchrun.Execute | None) -> None:
    """Run, or submit, and say where the record lies."""
    if is_for_slurm(config) and execute is None:
        check(config, given)
        done, failed = slurm.train([(config, given)])
        for error in failed:
            raise error
        for folder in done:
            report(folder)
    else:
        report(run_config(config, given, execute))


def train_submitted(folder: Path, execute: torchrun.Execute | None) -> None:
    """In a job of ``launch=slurm``: train what the run folder says."""
    config = read_config(folder)
    if execute is not None:
        torchrun.check_launch(config)
    report(train_in(folder, config, execute))


def report(folder: Path) -> None:
    """Say what a finished run has sent, and where its record lies."""
    if line := counted_line(folder):
        print(line, flush=True)
    if line := mirror.sync_line([folder]):
        print(line, flush=True)
    print(f"run folder: {folder}", flush=True)
