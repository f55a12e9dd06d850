"""Read and write files that somebody else may have made: run folders, pools, profiles, logs.

Such a file is data. Reading one follows no symbolic link, runs no code, and has a bound on its size and on
the size of what it decodes to. Writing one makes a new file and puts it in the place of the old name: it
never writes through a link.

A reader raises UserError for a link, for what is no plain file, and for a file that is too large; OSError
where the file cannot be opened; ValueError where the content has another format.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from dgc_repro.errors import UserError, writing

MIB = 2**20
MOST_BYTES = {
    ".json": 16 * MIB,
    ".jsonl": 1024 * MIB,
    ".csv": 256 * MIB,
    ".parquet": 64 * MIB,
}
"""The largest file that is read, by suffix; the largest published files have less than a tenth of it."""
MOST_OTHERS = MIB
MOST_LINE = MIB  # of a file of JSON lines
MOST_VALUES = 10**7  # of a table
MOST_DEPTH = 64  # of lists and mappings in YAML
MOST_NUMBER = 1000  # letters, in YAML
MOST_INTEGER = 2**63  # what an int64 holds


def opened(path: Path) -> io.BufferedReader:
    """Open a file for reading. Raises UserError for a link and for what is no plain file, and OSError."""
    file = open(path, "rb", opener=_unlinked)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UserError(f"{path}: is no plain file; remove it")
    return file


def content(path: Path, most: int | None = None) -> bytes:
    """Read a file of at most ``most`` bytes, by default the bound of its suffix. Raises UserError and
    OSError."""
    most = MOST_BYTES.get(path.suffix, MOST_OTHERS) if most is None else most
    with opened(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise UserError(
            f"{path}: has more than {most:,} bytes, the most that is read of such a file"
        )
    return found


def text(path: Path) -> str:
    """Read a file of text in UTF-8. Raises UserError, OSError and ValueError."""
    return content(path).decode("utf-8")


def ending(path: Path, size: int) -> bytes:
    """Read the last ``size`` bytes of a file of any length. Raises UserError and OSError."""
    with opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def unpacked(path: Path, most: int) -> bytes:
    """Read a gzip file whose content has at most ``most`` bytes. Raises UserError, and OSError or EOFError or
    zlib.error for what is no gzip file."""
    with opened(path) as file, gzip.GzipFile(fileobj=file) as packed:
        found = packed.read(most + 1)
    if len(found) > most:
        raise UserError(f"{path}: unpacks to more than {most:,} bytes; it is another file")
    return found


def parsed_yaml(text: str) -> Any:
    """Return what a text in YAML says. Raises ValueError for what is no YAML, for long numbers, and for
    aliases: a few lines of these expand to more than any memory holds, or contain themselves."""
    import yaml  # of the extra `repro`: other files are read without it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has aliases (*name); write the values in full")
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > MOST_NUMBER:
                is_number = event.implicit[0] and event.value[0] in "+-.0123456789"
                if (
                    is_number or event.tag is not None
                ):  # such as 1:1:1 in base 60, with all its digits
                    raise ValueError(f"it has a number of more than {MOST_NUMBER:,} letters")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_DEPTH:
                raise ValueError(f"it has more than {MOST_DEPTH} levels")
        return yaml.load(text, loader)
    except (yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def as_yaml(value: Any) -> str:
    """Return a value in YAML that `parsed_yaml` reads. An object that occurs twice is written out twice."""
    import yaml

    class WithoutAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump(value, Dumper=WithoutAliases, sort_keys=False)


def parsed_json(text: str | bytes) -> Any:
    """Return what a text in JSON says. Raises ValueError, also for a whole number beyond an int64."""
    try:
        return _JSON.decode(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it has too many levels") from error


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line; of an empty line an empty one. Raises
    UserError and OSError, and ValueError for a line that is no object."""
    most = MOST_BYTES[".jsonl"]
    with opened(path) as file:
        number = 0
        while line := file.readline(MOST_LINE + 1):
            number, most = number + 1, most - len(line)
            if most < 0:
                raise UserError(f"{path}: has more than {MOST_BYTES['.jsonl']:,} bytes")
            try:
                if len(line) > MOST_LINE:
                    raise ValueError(f"it has more than {MOST_LINE:,} bytes")
                value = parsed_json(line) if line.strip() else {}
                if not isinstance(value, dict):
                    raise ValueError(f"got {type(value).__name__}")
            except ValueError as error:
                raise ValueError(f"line {number} is not a JSON object ({error})") from error
            yield value


def refuse_large(rows: int, columns: int) -> None:
    """Raise ValueError for a table of more than `MOST_VALUES`, before it is made. A column counts as at least
    1,000 values, for a column takes memory of its own."""
    if max(rows, 1000) * columns > MOST_VALUES or rows > MOST_VALUES:
        raise ValueError(
            f"a table of {rows:,} rows and {columns:,} columns; the most is {MOST_VALUES:,} values"
        )


def refuse_large_csv(content: bytes) -> None:
    """Raise ValueError for a CSV table of more than `MOST_VALUES`, whose short lines pandas would fill, and
    for a quoted field with a line break, in which columns could hide."""
    rows = columns = 0
    for line in io.BytesIO(content.replace(b"\r", b"\n")):
        if line.count(b'"') % 2:
            raise ValueError("a field with a line break")
        rows += 1
        if line.count(b",") >= columns:
            columns = line.count(b",") + 1
            refuse_large(0, columns)
    refuse_large(rows, columns)


def replace(path: Path, content: bytes) -> None:
    """Replace a file. If the process is killed meanwhile, the old file stays. Raises UserError where a folder
    has the name, and OSError."""
    _refuse_folder(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with writing(path), temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def begun(path: Path) -> TextIO:
    """Open a new, empty file of text in the place of one that may be there. Raises UserError where a folder
    has the name, and OSError."""
    _refuse_folder(path)
    path.unlink(missing_ok=True)  # of a link the link, not what it leads to
    return path.open("x", encoding="utf-8")


def appended(path: Path) -> TextIO:
    """Open a file of text to append to it, and make it if there is none. Raises UserError for a link, and
    OSError."""
    return open(path, "a", encoding="utf-8", opener=_unlinked)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it. Raises OSError, not where nothing is
    there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def refuse_link(folder: Path, key: str) -> None:
    """Raise UserError, which begins with a config key, for a folder that is a link."""
    if folder.is_symlink():
        raise UserError(
            f"{key}: {folder} is a symbolic link, which is not followed; put the folder itself there"
        )


def _unlinked(name: str, flags: int) -> int:
    """Open as `open` asks for, but no link, and without waiting for the other end of a pipe."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and Path(name).is_symlink():
            raise UserError(
                f"{name}: is a symbolic link, which is not followed; put the file itself there"
            ) from error
        raise


def _refuse_folder(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        raise UserError(f"{path}: is a folder, and a file is to be written there; remove it")


def _whole(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else MOST_INTEGER
    if not -MOST_INTEGER <= value < MOST_INTEGER:
        raise ValueError(f"it has a whole number of {len(digits)} digits")
    return value


_JSON = json.JSONDecoder(parse_int=_whole)
