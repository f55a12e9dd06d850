"""``torchrun --nproc_per_node=2 -m dgc_repro key=value ...``: each process is a rank of one run.

Rank 0 handles the command line as without torchrun: it composes the config, finds or makes the run folder,
holds its lock, and prints how the run ended; it trains where the launcher would start ranks. The others wait
for rank 0 to send the folder, or the exit code where there is nothing to train (a wrong key, a finished run,
``--help``). The number of workers is torchrun's.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from dgc_repro.errors import UserError
from dgc_repro.files import appended
from dgc_repro.launch.rank_process import leave, work
from dgc_repro.launch.ranks import (
    FAILED,
    HAS_STORE,
    LAUNCH,
    LOG_FILE,
    OWN_TARGETS,
    STOPPED,
    SUBMITTED,
    USER_ERROR,
    held,
    launch_in,
    raise_unless_finished,
    what_failed,
)

if TYPE_CHECKING:  # torch takes seconds to import, and only ranks need it
    from dgc_repro.launch.rendezvous import Rendezvous

Execute = Callable[[Mapping[str, Any], Path], None]
SWEEPS = ("-m", "--multirun", "hydra.mode=MULTIRUN")
SHARED_SECONDS = 5.0  # until a rank sees what rank 0 has written; a network file system may be late


def lead(command: Callable[[Execute], int], others: Collection[str]) -> NoReturn:
    """Rank 0, to the end of the process. ``command``: the command line in ``sys.argv``, given what trains a
    run; its exit code. ``others``: commands that are no run."""
    rendezvous = _met()
    has_sent = False

    def execute(config: Mapping[str, Any], folder: Path) -> None:
        nonlocal has_sent
        with held(folder) as here:
            has_sent = True
            instructions = {
                "folder": str(folder.absolute()),
                "node": platform.node(),
                LAUNCH: os.environ[LAUNCH],
                OWN_TARGETS: os.environ[OWN_TARGETS],
            }
            rendezvous.send_instructions(json.dumps(instructions))
            code, first = join(instructions, rendezvous)
        if code == USER_ERROR:
            rendezvous.leave()  # the caller may remove the folder: no other rank is in it any more
        if code == FAILED and not first and launch_in(folder) == here.launch:
            sys.exit(FAILED)  # another rank has said why
        raise_unless_finished(folder, [code], launch=here.launch)

    try:
        refuse_restarts(os.environ)
        sys.argv[1:] = with_workers(sys.argv[1:], rendezvous.size, others)
        code = command(execute)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USER_ERROR
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = FAILED
    if not has_sent:
        rendezvous.send_instructions(json.dumps({"code": code}))
        rendezvous.leave()
    leave(code)


def follow() -> NoReturn:
    """Any other rank, to the end of the process."""
    rendezvous = _met()
    try:
        answer = json.loads(rendezvous.receive_instructions())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(USER_ERROR)
    if "code" in answer:
        rendezvous.leave()
        leave(answer["code"])
    code, first = join(answer, rendezvous)
    if first:
        print(f"error: {what_failed(Path(answer['folder']))}", file=sys.stderr)
    if code == USER_ERROR:
        rendezvous.leave()
    leave(128 + signal.SIGTERM if code == STOPPED else code)  # whatever signal torchrun was sent


def join(instructions: Mapping[str, str], rendezvous: Rendezvous) -> tuple[int, bool]:
    """Train what the folder says with the others; see `rank_process.work`. ``instructions``: the
    folder, the id of the launch that rank 0 has begun there, its node, and the user's own components."""
    folder = Path(instructions["folder"])
    os.environ |= {key: instructions[key] for key in (LAUNCH, OWN_TARGETS)}
    until = time.monotonic() + SHARED_SECONDS
    log: TextIO | None = None
    while log is None and time.monotonic() < until:
        if launch_in(folder) == instructions[LAUNCH]:
            log = appended(folder / LOG_FILE)
        else:
            time.sleep(0.05)
    if log is None:
        rendezvous.refuse(
            f"paths.runs: rank {rendezvous.rank} on {platform.node()} does not see what rank 0 on "
            f"{instructions['node']} writes to {folder}; name a folder that all nodes share"
        )
        return USER_ERROR, False
    with log:
        return work(folder, log, rendezvous)


def _met() -> Rendezvous:
    """The rendezvous of this rank; without one the process ends."""
    from dgc_repro.launch.rendezvous import Rendezvous

    try:
        return Rendezvous()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(USER_ERROR)


def with_workers(arguments: Sequence[str], size: int, others: Collection[str]) -> list[str]:
    """The command line with torchrun's number of workers, where it names none. Raises UserError for what is
    not one run."""
    if arguments[:1] == [SUBMITTED]:
        return list(arguments)  # its config has the number
    for argument in arguments:
        if argument in SWEEPS or (argument == arguments[0] and argument in others):
            raise UserError(
                f"{argument}: starts ranks of its own; leave torchrun out: python -m dgc_repro "
                f"{argument} ..."
            )
    if any(argument.lstrip("+").startswith("launch.workers=") for argument in arguments):
        return list(arguments)
    return [f"launch.workers={size}", *arguments]


def refuse_restarts(environment: Mapping[str, str]) -> None:
    """Raise UserError for ``--max-restarts`` on several nodes whose agents keep a store for all starts: after
    a restart they give their ranks different addresses and different counts of restarts."""
    if (
        environment.get(HAS_STORE) == "True"
        and environment.get("GROUP_WORLD_SIZE", "1") != "1"
        and environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    ):
        raise UserError(
            "--max-restarts: on several nodes torchrun needs --rdzv-backend=c10d and the environment "
            "variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on each of them, or a node that is started again "
            "does not find the others"
        )


def check_launch(config: Mapping[str, Any]) -> None:
    """Refuse a config that torchrun's processes cannot be the ranks of. Raises UserError."""
    launch, started = config["launch"], os.environ["WORLD_SIZE"]
    if launch["kind"] != "local":
        raise UserError(
            f"launch.kind: {launch['kind']} starts its own processes; leave torchrun out: python -m "
            f"dgc_repro launch={launch['kind']} ..., or use launch=local"
        )
    if str(launch["workers"]) != started:
        raise UserError(
            f"launch.workers: {launch['workers']} given, torchrun started {started}; leave launch.workers "
            "out, or start as many"
        )
