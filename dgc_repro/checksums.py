"""Checksums: a JSON record with a SHA-256 of itself, and the size and SHA-256 of files beside it.

The manifest of a checkpoint and the summary of a finished run are such records.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgc_repro import files
from dgc_repro.errors import UserError

FILES, OWN = "files", "sha256"
Entry = tuple[int, str]
"""The size of a file in bytes, and its SHA-256 in hex."""
RECORD = (".yaml", ".json", ".jsonl", ".csv")
"""The files of a run folder that readers use end so."""
OTHER = "is damaged: its checksum is another"


class Damaged(Exception):
    """A file is not as it was written; the message says which file and why."""


def entry_of(content: bytes) -> Entry:
    """The entry of a file with this content."""
    return len(content), hashlib.sha256(content).hexdigest()


def entry_in(path: Path, most: int | None = None) -> Entry:
    """The entry of a file. The checksum is empty, and the file is not read, where it has more than ``most``
    bytes. Raises Damaged for one that cannot be read, and for a link."""
    try:
        with files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                return size, ""
            return size, hashlib.file_digest(file, "sha256").hexdigest()
    except UserError as error:
        raise Damaged(str(error)) from error
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error


def sealed(record: Mapping[str, Any]) -> bytes:
    """The record as JSON, with the checksum of all its other entries."""
    others = {key: value for key, value in record.items() if key != OWN}
    text = json.dumps(others, sort_keys=True)
    own = {OWN: hashlib.sha256(text.encode()).hexdigest()}
    return f"{json.dumps({**others, **own}, indent=1)}\n".encode()


def sealed_summary(path: Path, summary: Mapping[str, Any]) -> bytes:
    """The content of summary.json of a finished run, with the checksums of the record beside it."""
    record = [
        file
        for file in sorted(path.parent.iterdir())
        if file.suffix in RECORD and file != path and not file.is_symlink()
    ]
    return sealed({**summary, FILES: {file.name: entry_in(file) for file in record}})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a record that `sealed` made. Raises Damaged, also for a record without a checksum."""
    try:
        content = files.content(path)
        record = files.parsed_json(content)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    except UserError as error:
        raise Damaged(str(error)) from error
    except ValueError as error:
        raise Damaged(f"{path.name} is not JSON: {error}") from error
    if not isinstance(record, dict) or OWN not in record:
        raise Damaged(
            f"{path.name} has no checksum: it is damaged, or an older version of dgc_repro wrote it"
        )
    if sealed(record) != content:
        raise Damaged(f"{path.name} {OTHER}")
    return record


def verified(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Compare a record, read from this file, and the files that it lists with their checksums; return it
    without the checksums. Older versions wrote none: such a record is not verified. Raises Damaged."""
    if FILES in record or OWN in record:  # one flipped bit cannot hide both
        listed = read_sealed(path).get(FILES)
        if not isinstance(listed, dict) or any(Path(name).name != name for name in listed):
            raise Damaged(f"{path.name} has no list of the files beside it")
        for name, entry in listed.items():
            file = path.parent / name
            if not file.is_file():
                raise Damaged(f"{name} is missing")
            most = files.MOST_BYTES.get(file.suffix, files.MOST_OTHERS)
            size = entry[0] if isinstance(entry, list) and entry else 0
            if not isinstance(size, int) or [*entry_in(file, min(size, most))] != entry:
                raise Damaged(f"{name} {OTHER}")
    return {key: value for key, value in record.items() if key not in (FILES, OWN)}
