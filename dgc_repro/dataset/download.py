"""A download into a folder that the ranks of a machine share."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import tarfile
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from dgc_repro.errors import UserError
from dgc_repro.progress import Progress

CHUNK_BYTES = 1 << 18
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


def fetch(url: str, path: Path, algorithm: str, expected: str) -> None:
    """Download a file and show the progress; it appears whole, with the ``expected`` checksum (hex), or not.
    Raises ValueError where the server has something else, OSError where it has nothing."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    temporary = path.with_name(f"{path.name}.part")
    try:
        with urllib.request.urlopen(url) as answer, temporary.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            with Progress(f"downloading {path.name}", total) as progress:
                while chunk := answer.read(CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
                    progress.advance(len(chunk), f"{file.tell() / 1e6:.0f} of {total / 1e6:.0f} MB")
        if digest.hexdigest() != expected:
            raise ValueError(
                f"{path.name} has {algorithm} {digest.hexdigest()[:16]}..., expected {expected[:16]}..."
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
