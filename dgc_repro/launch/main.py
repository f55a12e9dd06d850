"""The command line: one handler around everything, so that a mistake is one line and exit code 2.

``python -m dgc_repro key=value ...`` makes one run; ``--multirun`` sweeps. Commands, each with ``--help``:
``reproduce`` a paper's table; ``queue`` trains a list of them; ``compare`` your runs; ``recommend`` a method;
``calibrate`` a network; ``selfcheck`` this machine; ``new-paper`` from a template; ``wandb`` uploads finished
runs; ``netlab clean``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and `answer` prints
# torch's store may warn of a rank that is lost, beside the one line that says so.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dgc_repro.errors import UserError, full_disk, shown
from dgc_repro.launch.cli_args import refuse_extremes
from dgc_repro.launch.paths import add_conf_dirs, conf_dir, conf_dirs_apart, use_user_configs
from dgc_repro.launch.ranks import (
    FAILED,
    STOP_SIGNALS,
    SUBMITTED,
    USER_ERROR,
    RunFailed,
    RunStopped,
    inside_torchrun,
)
from dgc_repro.names import papers_in

if TYPE_CHECKING:
    from dgc_repro.launch.torchrun import Execute

COMMANDS = {
    "reproduce": "dgc_repro.launch.reproduce:reproduce",
    "queue": "dgc_repro.launch.queue:queue",
    "compare": "dgc_repro.compare:main",
    "recommend": "dgc_repro.predict.recommend:recommend",
    "calibrate": "dgc_repro.predict.calibrate:calibrate",
    "selfcheck": "dgc_repro.selfcheck.command:selfcheck",
    "netlab": "dgc_repro.network.lab:command",
    "new-paper": "dgc_repro.launch.new_paper:new_paper",
    "wandb": "dgc_repro.launch.mirror:command",
}
"""What each command calls with its arguments. A command is imported when it is given: torch takes seconds."""


def main() -> None:
    """Entry point of ``python -m dgc_repro``; inside torchrun, of rank 0."""
    # Hydra logs what it prints: no traceback a line of a closed pipe.
    logging.raiseExceptions = False
    if os.getcwd() not in sys.path and "" not in sys.path:  # the console script; python -m has it
        sys.path.append(os.getcwd())
    if inside_torchrun():
        from dgc_repro.launch import torchrun

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
    Hydra's shell functions call it. Without torch it takes about as long as Hydra does. Of commands it knows
    the artifacts of `reproduce`; Hydra would complain of a word that is no override."""
    words = os.environ.get("COMP_LINE", "").split(" ")
    if words[1:2] and words[1] in COMMANDS and any("query=" in word for word in sys.argv):
        papers = papers_in(conf_dir()).values() if words[1] == "reproduce" else ()
        names = sorted(name for sections in papers for name in sections.get("artifact", {}))
        print("\n".join(name for name in names if name.startswith(words[-1])))
        return
    with contextlib.suppress(UserError):  # a folder that is only half typed
        add_conf_dirs(conf_dirs_apart(os.environ.get("COMP_LINE", "").split())[0])
    if sys.argv[0].endswith(".py"):  # python -m dgc_repro: shells complete by the name of a command
        sys.argv[0] = "dgc-repro"
    _answer_of_hydra()


def _answer_of_hydra() -> None:
    """Have Hydra answer what needs no run."""
    use_user_configs()
    hydra.main(str(conf_dir()), "config", "1.3")(lambda config: None)()


def dispatch(execute: Execute | None = None) -> None:
    """A subcommand, the help, or what Hydra runs. ``execute``: what trains a run, where it is not
    `run_config`'s choice."""
    refuse_extremes(sys.argv[1:])
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        pkgutil.resolve_name(COMMANDS[sys.argv[1]])(sys.argv[2:])
        return
    if re.fullmatch("[a-z][a-z-]+", "".join(sys.argv[1:2])) and sys.argv[1] != SUBMITTED:
        raise UserError(f"{sys.argv[1]}: no such command; there are: {', '.join(COMMANDS)}")
    added, arguments = conf_dirs_apart(sys.argv[1:])
    if set(arguments) in ({"-h"}, {"--help"}):
        add_conf_dirs(added)
        sys.argv[1:] = arguments
        _answer_of_hydra()
        return
    from dgc_repro.launch.command_line import run

    run(execute)


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
            from dgc_repro.launch.overrides import in_one_line  # imports torch: seconds

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
