"""A download into a folder that the ranks of a machine share."""

from __future__ import annotations

import contextlib
import socket
import tarfile
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from dgc_repro.errors import UserError

NETWORK_TIMEOUT_S = 30.0  # else a firewall that drops packets would hold the run for ever
# No network, no permission; a wrong checksum; an archive that does not unpack.
TROUBLE = (OSError, RuntimeError, EOFError, ValueError, HTTPException, tarfile.TarError)


@contextlib.contextmanager
def downloading(what: str, root: Path, source: str, files: str) -> Iterator[None]:
    """One process at a time: the first rank downloads, the others find it done. Raises UserError where
    the download fails, ``source``: by or from whom; then no new folder stays behind, and a rank that waits
    for the lock makes it again."""
    made = not root.exists()
    lock = FileLock(root / ".download.lock")
    timeout = socket.getdefaulttimeout()
    try:
        while not lock.is_locked:
            root.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except FileNotFoundError:
                made = True
        socket.setdefaulttimeout(NETWORK_TIMEOUT_S)
        yield
    except TROUBLE as error:
        with contextlib.suppress(OSError):  # read only, or not empty: another rank is at it
            Path(lock.lock_file).unlink(missing_ok=True)
            if made:
                root.rmdir()
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"dataset.root: downloading {what} into {root} {source} failed ({reason}); try again where "
            f"there is a network, or put {files} into a folder and name it"
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)
        lock.release()
