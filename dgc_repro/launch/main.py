"""The command line: one handler around everything, so that a mistake is one line and exit code 2.

``python -m dgc_repro key=value ...`` makes one run; ``--multirun`` sweeps. Commands, each with ``--help``:
``reproduce`` a paper's table; ``queue`` trains a list of them; ``compare`` your runs; ``recommend`` a method;
``calibrate`` a network; ``selfcheck`` this machine; ``new-paper`` from a template; ``wandb`` uploads finished
runs; ``netlab clean``.
"""

from __future__ import annotations

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

from dgc_repro.errors import UserError, full_disk
from dgc_repro.launch.paths import add_conf_dirs, conf_dir, conf_dirs_apart, use_user_configs
from dgc_repro.launch.ranks import inside_torchrun

if TYPE_CHECKING:
    from dgc_repro.launch.torchrun import Execute

USER_ERROR = 2
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
        from dgc_repro.launch.ranks import STOP_SIGNALS

        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def dispatch(execute: Execute | None = None) -> None:
    """A subcommand, the help, or what Hydra runs. ``execute``: what trains a run, where it is not
    `run_config`'s choice."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        pkgutil.resolve_name(COMMANDS[sys.argv[1]])(sys.argv[2:])
        return
    if re.fullmatch("[a-z][a-z-]+", "".join(sys.argv[1:2])):
        from dgc_repro.launch.ranks import SUBMITTED

        if sys.argv[1] != SUBMITTED:
            raise UserError(f"{sys.argv[1]}: no such command; there are: {', '.join(COMMANDS)}")
    added, arguments = conf_dirs_apart(sys.argv[1:])
    if set(arguments) in ({"-h"}, {"--help"}):
        add_conf_dirs(added)
        use_user_configs()
        sys.argv[1:] = arguments
        hydra.main(str(conf_dir()), "config", "1.3")(lambda config: None)()
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
    except UserError as error:
        return say(str(error), USER_ERROR)
    except (HydraException, OmegaConfBaseException) as error:
        from dgc_repro.launch.overrides import in_one_line

        return say(in_one_line(error), USER_ERROR)
    except PermissionError as error:
        return say(
            f"paths.runs: no permission to write {error.filename}; set paths.runs to a folder of yours",
            2,
        )
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return say(f"{error.filename}: this name is too long for a file; give a shorter one", 2)
        full = full_disk(error, "a file of this command")
        if full is None:
            raise
        return say(f"{full}, and give the same command again", 1)
    except MemoryError as error:
        return say(
            f"memory: these sizes need more than there is ({error}); use smaller ones", USER_ERROR
        )
    except KeyboardInterrupt:
        return say("stopped before the run began", 128 + signal.SIGINT)
    except Exception as error:
        from dgc_repro.launch.ranks import RunFailed, RunStopped

        if isinstance(error, RunFailed):
            return say(str(error), 1)
        if isinstance(error, RunStopped):
            return say(str(error), 128 + error.signal_number)
        raise
    return 0


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
    print(f"error: {text}", file=sys.stderr, flush=True)
    return code
