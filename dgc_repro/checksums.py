"""Checksums: a JSON record with a SHA-256 of itself, and the size and SHA-256 of files beside it.

The manifest of a checkpoint and the summary of a finished run are such records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def sealed(record: Mapping[str, Any]) -> bytes:
    """The record as JSON, with the checksum of all its other entries."""
    others = {key: value for key, value in record.items() if key != OWN}
    text = json.dumps(others, sort_keys=True)
    own = {OWN: hashlib.sha256(text.encode()).hexdigest()}
    return f"{json.dumps({**others, **own}, indent=1)}\n".encode()


def sealed_summary(path: Path, summary: Mapping[str, Any]) -> bytes:
    """The content of summary.json of a finished run, with the checksums of the record beside it."""
    record = [file for file in path.parent.iterdir() if file.suffix in RECORD and file != path]
    return sealed({**summary, FILES: {f.name: entry_of(f.read_bytes()) for f in sorted(record)}})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a record that `sealed` made. Raises Damaged, also for a record without a checksum."""
    try:
        content = path.read_bytes()
        record = json.loads(content)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
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
        files = read_sealed(path).get(FILES)
        if not isinstance(files, dict) or any(Path(name).name != name for name in files):
            raise Damaged(f"{path.name} has no list of the files beside it")
        for name, entry in files.items():
            file = path.parent / name
            if not file.is_file():
                raise Damaged(f"{name} is missing")
            if [*entry_of(file.read_bytes())] != entry:
                raise Damaged(f"{name} {OTHER}")
    return {key: value for key, value in record.items() if key not in (FILES, OWN)}
