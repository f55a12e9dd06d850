"""The command line: one handler around everything, so that a mistake is one line and exit code 2.

``python -m dgc_repro key=value ...`` makes one run; ``--multirun`` sweeps; `COMMANDS` has the commands, each
with ``--help``.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and `answer` prints
# torch's store may warn of a rank that is lost, beside the one line that says so.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import DiskFull, UserError, full_disk, shown
from dgc_repro.launch import torchrun
from dgc_repro.launch.cli_args import refuse_extremes
from dgc_repro.launch.overrides import check_overrides, in_one_line, key_of, sets, with_profiles
from dgc_repro.launch.paths import (
    add_conf_dirs,
    composing,
    conf_dir,
    conf_dirs_apart,
    use_user_configs,
)
from dgc_repro.launch.rank_process import inside_torchrun
from dgc_repro.launch.ranks import (
    FAILED,
    STOP_SIGNALS,
    SUBMITTED,
    USER_ERROR,
    RunFailed,
    RunStopped,
)
from dgc_repro.launch.torchrun import SWEEPS, Execute

HELP = {"-h", "--help"}


class Command(NamedTuple):
    """What a command calls with its arguments, as ``module:function``, and what it does. ``of_a_run``:
    whether it takes settings of a run; ``help``: what prints its page without importing the command."""

    target: str
    about: str
    of_a_run: bool = False
    help: str = ""


COMMANDS = {
    "reproduce": Command(
        "dgc_repro.launch.reproduce:reproduce",
        "Make the runs and the page of a paper's table or figure.",
        of_a_run=True, help="dgc_repro.launch.reproduce_help:show",
    ),
    "compare": Command("dgc_repro.compare.command:main", "Compare your own runs: tables and a figure."),
    "recommend": Command(
        "dgc_repro.predict.recommend:recommend", "Recommend a setting for a model on a network."
    ),
    "calibrate": Command(
        "dgc_repro.predict.calibrate:calibrate",
        "Measure the links between workers, and write a network profile.",
        of_a_run=True,
    ),
    "selfcheck": Command(
        "dgc_repro.selfcheck.command:selfcheck",
        "Check this machine: PASS, FAIL or SKIP for each part.",
    ),
    "new-paper": Command(
        "dgc_repro.launch.new_paper:new_paper", "Write the three files of a paper of your own."
    ),
    "wandb": Command("dgc_repro.launch.mirror:command", "Copy finished runs to wandb."),
    "netlab": Command("dgc_repro.network.lab:command", "Remove labs that ended runs have left."),
}  # fmt: skip
"""A command is imported when it is given: torch takes seconds."""
GONE = {
    "queue": "reproduce list=queue trains the list (plan=true for list=true, list=<file> for file=<file>)"
}
"""Commands of earlier versions, and what to type instead."""


def main() -> None:
    """Entry point of ``python -m dgc_repro``; inside torchrun, of rank 0."""
    # Hydra logs what it prints: no traceback a line of a closed pipe.
    logging.raiseExceptions = False
    if os.getcwd() not in sys.path and "" not in sys.path:  # the console script; python -m has it
        sys.path.append(os.getcwd())
    if inside_torchrun():
        torchrun.lead(lambda execute: answer(lambda: dispatch(execute)), COMMANDS)
    leave(answer(dispatch))


def leave(code: int) -> NoReturn:
    """End this process. After a stop a second signal changes nothing, while Python ends."""
    if code > 128:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def complete() -> None:
    """Tab completion of the command ``dgc-repro``: ``eval "$(dgc-repro -sc install=bash)"`` (docs/sweeps.md).
    Hydra's shell functions call it. Without torch it takes about as long as Hydra does. After a command it
    offers the command's own names and keys; Hydra answers for settings of a run."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    is_query = any("query=" in word for word in sys.argv)
    with contextlib.suppress(UserError):  # a folder that is only half typed
        add_conf_dirs(conf_dirs_apart(list(filter(None, words)))[0])
    if is_query and words[1:2] and words[1] in COMMANDS and words[2:]:
        from dgc_repro.launch import completion

        offered = completion.of_command(words[1], COMMANDS[words[1]], words[2:])
        print(*offered, sep="\n", end="\n" if offered else "")
        # Hydra complains of words that are no overrides.
        own = completion.own_keys(COMMANDS[words[1]])
        others = [w for w in words[2:-1] if "=" in w and f"{w.partition('=')[0]}=" not in own]
        if offered or not (COMMANDS[words[1]].of_a_run or "=" in words[-1]) or "/" in words[-1]:
            return
        os.environ["COMP_LINE"] = " ".join([words[0], *others, words[-1]])
    elif is_query and len(words) == 2 and words[1]:
        for name in COMMANDS:
            if name.startswith(words[1]):
                print(name)
    if sys.argv[0].endswith(".py"):  # python -m dgc_repro: shells complete by the name of a command
        sys.argv[0] = "dgc-repro"
    use_user_configs()
    hydra.main(str(conf_dir()), "config", "1.3")(lambda config: None)()


def dispatch(execute: Execute | None = None) -> None:
    """A subcommand, the help, or what Hydra runs. ``execute``: what trains a run, where it is not
    `run_config`'s choice."""
    refuse_extremes(sys.argv[1:])
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        command = COMMANDS[sys.argv[1]]
        if HELP & set(sys.argv[2:]):
            print(f"{command.about}\n")
        if HELP & set(sys.argv[2:]) and command.help:
            add_conf_dirs(conf_dirs_apart(sys.argv[2:])[0])
            pkgutil.resolve_name(command.help)()
            return
        pkgutil.resolve_name(command.target)(sys.argv[2:])
        return
    added, arguments = conf_dirs_apart(sys.argv[1:])
    if HELP & set(arguments):
        from dgc_repro.launch import help

        add_conf_dirs(added)
        words = [word for word in arguments if word not in HELP]
        with composing():
            help.show(words, {name: command.about for name, command in COMMANDS.items()})
        return
    if re.fullmatch("[a-z][a-z-]+", "".join(sys.argv[1:2])) and sys.argv[1] != SUBMITTED:
        known = GONE.get(sys.argv[1]) or f"there are: {', '.join(COMMANDS)}"
        raise UserError(f"{sys.argv[1]}: no such command; {known}")
    run(execute)


def run(execute: Execute | None) -> None:
    """Have Hydra compose and run what a command line without a command says: one run, a sweep, or one of
    Hydra's flags such as ``--cfg job``. ``execute``: what trains a run, where it is not `run_config`'s
    choice."""
    from dgc_repro.launch import sweep  # imports torch: seconds

    if sys.argv[1:2] == [SUBMITTED]:
        sweep.train_submitted(Path(*sys.argv[2:]), execute)
        return
    added, arguments = conf_dirs_apart(sys.argv[1:])
    add_conf_dirs(added)
    settings = [a for a in arguments if a[:1] == "~" or ("=" in a and a[:1] != "-")]
    flags = [argument for argument in arguments if argument not in settings]
    with composing():
        check_overrides(settings)
        _refuse_run_dir(settings)
        settings = _with_own_sizes(with_profiles(settings))
        if set(SWEEPS) & set(arguments):
            settings = sweep.with_choices(settings)
    sys.argv[1:] = [*settings, *flags]  # Hydra's parser wants settings in one piece

    def task(config: DictConfig) -> float | list[float] | None:
        return sweep.one_run(config, execute)

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


def answer(action: Callable[[], None]) -> int:
    """Run the action; its exit code. A user's mistake is one line on stderr."""
    try:
        action()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as error:
        if (said := in_words(error)) is None:
            raise
        return say(*said)
    return 0


def in_words(error: BaseException) -> tuple[str, int] | None:
    """The line and the exit code of an error that is shown without a traceback, None for another one."""
    full = full_disk(error, "a file of this command")
    match error:
        case UserError():
            return str(error), USER_ERROR
        case HydraException() | OmegaConfBaseException():
            return in_one_line(error), USER_ERROR
        case PermissionError():
            where = f"no permission to write {error.filename}"
            return f"paths.runs: {where}; set paths.runs to a folder of yours", USER_ERROR
        case OSError(errno=errno.ENAMETOOLONG):
            name = f"{error.filename}: this name is too long for a file"
            return f"{name}; give a shorter one", USER_ERROR
        case OSError() if full:
            return f"{full}, and give the same command again", FAILED
        case MemoryError():
            return (
                f"memory: these sizes need more than there is ({error}); use smaller ones",
                USER_ERROR,
            )
        case KeyboardInterrupt():
            return "stopped before the run began", 128 + signal.SIGINT
        case RunFailed():
            return str(error), FAILED
        case RunStopped():
            return str(error), 128 + error.signal_number
    return None


def _stdout_is_closed() -> bool:
    """Whether the reader of stdout has gone (``| head``); then nothing more is written there."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def say(text: str, code: int) -> int:
    """Print an error in one line; the exit code."""
    print(f"error: {shown(text)}", file=sys.stderr, flush=True)
    return code
