"""``python -m dgc_repro``: one run, a sweep (``--multirun``), or ``reproduce <paper>/<artifact>``.

Inside torchrun each process is a rank: rank 0 reads the command line, the others join it. ``worker
<run folder>`` is how the launcher starts a rank."""

from __future__ import annotations

import os
import signal
import sys

from dgc_repro import __version__
from dgc_repro.errors import MissingExtra, needing_repro


def main() -> None:
    """Entry point. Each process imports only what it needs: that takes seconds."""
    if sys.argv[1:] == ["--version"]:
        print(f"dgc_repro {__version__}")
        return
    try:
        with needing_repro("the command line"):
            _run()
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _run() -> None:
    """Do what the command line says."""
    from dgc_repro.launch.rank_process import end_with_starter, inside_torchrun

    end_with_starter()
    if sys.argv[1:2] == ["worker"]:
        from dgc_repro.launch.worker import main as run

        del sys.argv[1]
    elif {"-sc", "--shell-completion"} & set(sys.argv):
        from dgc_repro.launch.main import complete as run
    elif inside_torchrun() and os.environ["RANK"] != "0":
        from dgc_repro.launch.torchrun import follow as run

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C before training: rank 0 says so
    else:
        from dgc_repro.launch.main import main as run
    run()


if __name__ == "__main__":
    main()
