"""The process of a row: ``python -m dgc_repro.selfcheck.worker <job as JSON>``.

It imports the row's module here and not earlier, so that a broken import is the row's failure. It writes one
line of JSON for each case to a pipe; what it prints goes to the row's log.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

from dgc_repro.launch.rank_process import end_with_parent
from dgc_repro.selfcheck.rows import Skip


def main() -> NoReturn:
    """Run the cases of a job from number ``skip`` on, and end after the first that fails: a CUDA fault spoils
    every later call of its process."""
    job = json.loads(sys.argv[1])
    end_with_parent(signal.SIGKILL, job["parent"])
    faulthandler.enable()
    _watch(job)
    code = 1
    try:
        checks = importlib.import_module(job["module"]).checks(job["device"])
        number = 0
        while True:
            try:
                name, check = next(checks)
            except StopIteration as end:
                _tell(job, done=end.value or "")
                code = 0
                break
            number += 1
            if number > job["skip"]:
                _tell(job, begin=name)
                _watch(job)
                if not _passes(job, name, check):
                    break
    except Skip as reason:
        _tell(job, skip=str(reason))
        code = 0
    except BaseException as error:
        traceback.print_exc()
        _tell(job, failed=_line(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # process groups and devices take seconds to close, and have nothing to save


def _passes(job: dict[str, Any], name: str, check: Any) -> bool:
    """Run one case and report it; whether the next may follow."""
    try:
        _tell(job, case=name, status="PASS", detail=check())
    except Skip as reason:
        _tell(job, case=name, status="SKIP", detail=str(reason))
    except BaseException as error:
        print(f"case {name}:", file=sys.stderr)
        traceback.print_exc()
        _tell(job, case=name, status="FAIL", detail=_line(error))
        return False
    return True


def _watch(job: dict[str, Any]) -> None:
    """Print where all threads are just before the time of a case is up."""
    faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(job["timeout"])


def _line(error: BaseException) -> str:
    """The type and the first line of an error."""
    first = next(iter(str(error).splitlines()), "")
    return first if type(error).__name__ == "Mismatch" else f"{type(error).__name__}: {first}"


def _tell(job: dict[str, Any], **message: Any) -> None:
    """Report to the command. Ranks other than 0 report their failures only."""
    if job["rank"] == 0 or "failed" in message or message.get("status") == "FAIL":
        os.write(job["pipe"], (json.dumps(message | {"rank": job["rank"]}) + "\n").encode())


if __name__ == "__main__":
    main()
