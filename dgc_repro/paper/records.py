"""Finished runs, read back: one `Run` for each run folder.

A run was trained (``epochs``, ``decisions``, ``trace``), or measured or computed (``lines``). Unfinished runs
are skipped with a message, and so are damaged ones. A broken file is an error of one line that names it.

The summary of a finished run has the checksums of the record (checksums.py). `summary_of` compares them.
A run folder may be a stranger's: files.py reads its files, and `refuse_odd` and `Shape` look at their values.

A line of decisions.jsonl holds the decision of a step and the time of the step before. In the table of
`decisions_of` each time is in the row of its own step, and long runs are thinned to evenly spaced steps.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgc_repro import files
from dgc_repro.checked import refuse
from dgc_repro.checksums import Damaged, verified
from dgc_repro.errors import CONTROL, UserError, shown
from dgc_repro.names import default_of, defaults_of_component, with_current_names

if TYPE_CHECKING:
    import pandas as pd

FINISHED = "finished"
EPOCHS_FILE, TRACE_FILE, DECISIONS_FILE = "metrics.jsonl", "policy.csv", "decisions.jsonl"
LINES_FILES = ("rows.csv", "repeats.csv")
NEEDED_FILES = ("config.yaml", "environment.json", "summary.json")
DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError),
    MemoryError,
)
"""What reading a broken record may raise."""
MOST_KEY = 1000  # letters
FREE_KEYS = ("root", "seed")
"""May differ between the runs of one table: where the data lies, and the seed."""
DATA_SETS = {
    "Cifar10": "CIFAR-10",
    "Cifar100": "CIFAR-100",
    "FashionMnist": "Fashion-MNIST",
    "Ptb": "PTB",
}
"""Data sets by their class, as papers name them; others have their class's name in small letters."""
REQUIRED_METRICS = (
    *("epoch", "train/loss", "train/accuracy_percent", "test/accuracy_percent"),
    *("comm/floats", "comm/payload_bytes", "comm/wire_bytes", "time/train_seconds"),
)
MOST_STEPS = 1000
"""Of the decisions of a run in a table."""
_TIMES = ("seconds", "samples", "throughput", "own_square", "mean_square")
DECISIONS = (
    *("step", "branch", "factor", "theta_min", "candidate", "gain_theta_min", "gain_candidate"),
    *("gain", "norm_before", "norm_after", "raw_norms", "sent_norms", *_TIMES),
    "candidate_norms",
)
"""``step``: from 1; ``branch``: candidate, theta_min or dense; ``factor``: of what was sent, 1 is dense;
``gain``: of what was sent; ``norm_before``, ``norm_after``: of the whole error-fed gradient and of what was
sent; ``raw_norms``, ``sent_norms``, ``candidate_norms``: sums over tensors of the norms of the gradient
without its residual, of what was sent (none for a dense step), and of what the candidate would send."""
_SENT = {"theta_min": 1, "candidate": 2}
"""By branch, the place among the energies of what was sent; dense sends all of it."""
_DECIDED = ("branch", "theta_min", "candidate", "gain_theta_min", "gain_candidate", "gain")
_PREFIX = "decision/"
NETWORK = ("net/tx_bytes", "net/expected_tx_bytes", "comm/total_wire_bytes")
"""Of the summary of a run with ``launch=netlab``: bytes that a worker's interface counted, and the ledger."""
Section = Mapping[Any, Any] | None


def _frame(rows: Sequence[Mapping[str, Any]] = ()) -> pd.DataFrame:
    """Return a table of these rows. A summary is read without pandas, which takes half a second to import."""
    import pandas as pd

    return pd.DataFrame(list(rows))


@dataclass
class Shape:
    """The types that readers expect in a run's config: sections are mappings, wrappers are words."""

    seed: int
    experiment: Section
    compressor: Section
    wrap: Sequence[str] | None
    wrapper: Section
    policy: Section
    model: Section
    dataset: Section
    optimizer: Section
    schedule: Section
    train: Section
    exchange: Section
    launch: Section
    network: Section
    stopping: Section
    scale: Mapping[Any, Any] | str | None
    paths: Section
    sink: Section


@dataclass
class ModelShape:
    """The types that readers expect in the section ``model``."""

    blocks: Sequence[int] | int | None
    layers: int | None
    width: int | None
    hidden: int | None


@dataclass
class LaunchShape:
    """The types that readers expect in the section ``launch``."""

    workers: int | None


@dataclass
class SummaryShape:
    """The types that readers expect in a summary."""

    parameters: float | None


@dataclass
class EnvironmentShape:
    """The types that readers expect in the environment of a run."""

    before: Sequence[Mapping[Any, Any]] | None
    busy_cores: float | None


@dataclass(frozen=True)
class Run:
    """One finished run.

    id           the name of the run folder, which ends in the hash of the config
    epochs       one row an epoch, in order: metrics by name
    decisions    one row a recorded step: what the policy decided (`decisions_of`)
    trace        one row a change of the policy's plan
    lines        of a measurement or a study: its table
    """

    id: str
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    epochs: pd.DataFrame = field(default_factory=_frame)
    decisions: pd.DataFrame = field(default_factory=_frame)
    trace: pd.DataFrame = field(default_factory=_frame)
    lines: pd.DataFrame = field(default_factory=_frame)

    def setting(self, key: str, missing: Any = None) -> Any:
        """The config value of a dotted key, ``missing`` where the config has no such key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return missing
            value = value[part]
        return value

    @property
    def row(self) -> str:
        """The row of the table or figure that the run belongs to."""
        return str(self.setting("experiment.row"))

    @property
    def processor(self) -> str:
        """The kind of processor that trained: the GPU, or the CPU with its vector instructions. Sums are
        rounded differently on another kind, so the same seed is another run there."""
        name, *_ = str(self.environment.get("hardware", "")).split(", ")
        is_gpu = self.environment.get("device") == "cuda"
        vectors = "" if is_gpu else str(self.environment.get("vectors", ""))
        return ", ".join(part for part in (name, vectors) if part)

    @property
    def model(self) -> str:
        """The part of the row before the first dot, empty where there is none."""
        return self.row.partition(".")[0] if "." in self.row else ""

    @property
    def method(self) -> str:
        """The part of the row after the model."""
        return self.row.partition(".")[2] or self.row

    @property
    def data(self) -> str:
        """The data set that the run has read, empty for none."""
        name = str(self.setting("dataset._target_", "")).rpartition(".")[2]
        read = name and self.environment.get("data") != "none"
        return DATA_SETS.get(name, name.lower()) if read else ""

    @property
    def precision(self) -> str:
        """The precision in which the run was computed; ``train.precision=half`` leaves it to the device."""
        return str(self.environment.get("precision") or self.setting("train.precision", ""))

    @property
    def seed(self) -> int:
        """The seed, which pairs the runs of different rows."""
        return int(self.config["seed"])

    @property
    def scale(self) -> str:
        """``quick``, ``small``, ``medium``, ``paper``, or a recipe: ``low``, ``air``, ``fashion``."""
        value = self.config.get("scale")
        return str(value.get("name") if isinstance(value, dict) else value)

    def last(self, metric: str) -> float:
        """A metric of the last epoch. Raises UserError where the record lacks it."""
        if metric not in self.epochs.columns:
            names = ", ".join(self.epochs.columns)
            raise UserError(f"{self.id}: no {metric} in its epochs; there are {names}")
        return float(self.epochs[metric].iloc[-1])


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of a run folder; empty where there is none. Raises UserError where it, or a file of a
    finished run, is damaged."""
    path = folder / "summary.json"
    if CONTROL.search(folder.name) or len(folder.name.split("\n")) > 1:
        raise UserError(f"{folder}: a name with control characters; rename the folder")
    try:
        return verified(_read_json(path), path) if path.exists() or path.is_symlink() else {}
    except Damaged as error:
        raise UserError(f"{folder}: {error}") from error


def is_finished(folder: Path) -> bool:
    """Whether the run's summary says that it ended. Raises UserError for a damaged run."""
    return summary_of(folder).get("status") == FINISHED


def read_run(folder: Path) -> Run:
    """Read a finished run folder. Raises UserError for a missing, broken or damaged file."""
    for name in NEEDED_FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name}; this is not a finished run")
    summary = summary_of(folder)
    lines = next((folder / name for name in LINES_FILES if (folder / name).is_file()), None)
    if lines is None and not (folder / EPOCHS_FILE).is_file():
        raise UserError(f"{folder}: no {EPOCHS_FILE}; this is not a finished run")
    with one_line(folder):
        refuse(SummaryShape, summary)
        environment = _read_json(folder / "environment.json")
        refuse(EnvironmentShape, environment)
        return Run(
            id=folder.name,
            config=_read_config(folder / "config.yaml"),
            environment=environment,
            summary=summary,
            epochs=_read_epochs(folder / EPOCHS_FILE) if lines is None else _frame(),
            decisions=decisions_of(folder) if lines is None else _frame(),
            trace=_read_trace(folder / TRACE_FILE),
            lines=_parsed(lines, table, "a table") if lines is not None else _frame(),
        )


@contextlib.contextmanager
def one_line(
    folder: Path, what: str = "not the record of a run", fix: str = "run again"
) -> Iterator[None]:
    """Raise UserError for whatever reading a broken record, or values of other types, may raise. ``what``: is
    wrong with the folder, in words; ``fix``: what to do."""
    try:
        yield
    except UserError:
        raise
    except DAMAGE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{folder}: {what} ({reason}); {fix}") from error


def checked_config(config: Any) -> dict[str, Any]:
    """Return a recorded config with the names that keys have now. Raises ValueError, which names the key, for
    one that no run has: readers would stumble over it."""
    if not isinstance(config, dict) or "seed" not in config:
        raise ValueError("no seed")
    refuse_odd(config)
    refuse(Shape, config)
    refuse(ModelShape, config.get("model") or {})
    refuse(LaunchShape, config.get("launch") or {})
    return with_current_names(config)


def refuse_odd(value: Any) -> None:
    """Raise ValueError, which names the place, for a value that no record has: a whole number beyond an
    int64, more than `files.MOST_DEPTH` levels, keys of several types or of more than `MOST_KEY` letters,
    control characters, another type."""
    if found := _odd(value, 0):
        place, reason = found
        raise ValueError(f"{'.'.join(reversed(place))}: {reason}")


def _odd(value: Any, level: int) -> tuple[list[str], str] | None:
    """The place, innermost key first, and the reason of what `refuse_odd` refuses; None where all is well."""
    if level > files.MOST_DEPTH:
        return [], "too many levels"
    if isinstance(value, Mapping):
        kinds = {*map(type, value)}  # JSON of the mapping is sorted by its keys
        if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
            return [], "keys that are words, or all numbers, got others"
        for key, one in value.items():
            if len(name := str(key)) > MOST_KEY:
                return ["a key"], f"at most {MOST_KEY:,} letters, got {len(name):,}"
            if found := _odd(name, level):
                return ["a key"], found[1]
            if found := _odd(one, level + 1):
                return [*found[0], name], found[1]
    elif isinstance(value, list):
        for one in value:
            if found := _odd(one, level + 1):
                return [*found[0], "0"], found[1]
    elif isinstance(value, str):
        if CONTROL.search(value):
            return [], f"text without control characters, got {value!r}"
    elif isinstance(value, int):
        if not -files.MOST_INTEGER <= value < files.MOST_INTEGER:
            return [], "a whole number within 64 bits, got a larger one"
    elif value is not None and not isinstance(value, float):
        return [], f"a plain value, got one of type {type(value).__name__}"
    return None


def read_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The finished runs, ordered by row and seed, and a message for each one left out: it is not finished, or
    a file of it is missing, broken or damaged."""
    runs, skipped = [], []
    for folder in folders:
        try:
            if is_finished(folder):
                runs.append(read_run(folder))
            else:
                skipped.append(shown(f"{folder}: not finished, left out"))
        except UserError as error:
            skipped.append(f"left out: {error}")
    return in_order(runs), skipped


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Ordered by row and seed."""
    return sorted(runs, key=lambda run: (run.row, run.seed, run.id))


def of_rows(runs: Sequence[Run], rows: Iterable[str]) -> list[Run]:
    """The runs of these rows, row by row."""
    return [run for row in rows for run in runs if run.row == row]


def require_alike(runs: Sequence[Run], keys: Sequence[str]) -> None:
    """Raise UserError unless all runs share these config values and no row has a seed twice: rows trained
    for different numbers of epochs, or on other data, are not rows of one table."""
    for key in keys:
        if len(found := values_of(runs, key)) > 1:
            which = ", ".join(f"{value} in {name}" for value, name in found.items())
            raise UserError(f"{key}: the same in every run of one table, got {which}")
    seen: dict[tuple[str, int], str] = {}
    for run in runs:
        if first := seen.get((run.row, run.seed)):
            raise UserError(
                f"experiment.row: one run for row {run.row} and seed {run.seed}, got {first} and "
                f"{run.id}; publish one of them"
            )
        seen[run.row, run.seed] = run.id


def values_of(runs: Sequence[Run], key: str) -> dict[str, str]:
    """The values of a config key in these runs, as JSON, and the first run that has each. A setting that a
    record lacks came later: it has its default."""
    found: dict[str, str] = {}
    for run in runs:
        value = run.setting(key, default_of(key))
        if isinstance(value, dict):
            later = defaults_of_component(str(value.get("_target_", "")))
            value = {k: v for k, v in (later | value).items() if k not in FREE_KEYS}
        found.setdefault(json.dumps(value, sort_keys=True), run.id)
    return found


def table(content: bytes) -> pd.DataFrame:
    """Return the table of a CSV file. Raises ValueError for one that is too large, or is no table."""
    import pandas as pd

    files.refuse_large_csv(content)
    return pd.read_csv(io.BytesIO(content))


def _parsed(path: Path, parse: Callable[[bytes], Any], what: str) -> Any:
    """The content of a file. UserError names a file that ``parse`` cannot read."""
    try:
        return parse(files.content(path))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {what}, got something else ({reason}); run again") from error


def _read_json(path: Path) -> dict[str, Any]:
    value = _parsed(path, files.parsed_json, "JSON")
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON object, got {type(value).__name__}; run again")
    try:
        refuse_odd(value)
    except ValueError as error:
        raise UserError(f"{path}: {error}; run again") from error
    return value


def _read_config(path: Path) -> dict[str, Any]:
    config = _parsed(path, lambda content: files.parsed_yaml(content.decode("utf-8")), "YAML")
    try:
        return checked_config(config)
    except ValueError as error:
        raise UserError(
            f"{path}: a resolved config with a seed and a list of wrappers, got another ({error}); run again"
        ) from error


def _read_trace(path: Path) -> pd.DataFrame:
    """The trace of a policy; no rows where the policy wrote none."""
    is_there = path.is_file() and files.content(path).strip()
    return _parsed(path, table, "a table") if is_there else _frame()


def _read_epochs(path: Path) -> pd.DataFrame:
    """The lines of kind ``epoch``. A run that was killed and resumed may have written an epoch twice: the
    later one counts."""
    lines: list[dict[str, Any]] = []
    names: set[str] = set()
    for line in json_lines(path):
        if line.get("kind") == "epoch":
            lines.append(line)
            names.update(line)
            files.refuse_large(len(lines), len(names))
    frame = _frame(lines)
    if frame.empty:
        raise UserError(f"{path}: at least one epoch, got none; run again")
    if missing := [name for name in REQUIRED_METRICS if name not in frame.columns]:
        raise UserError(f"{path}: no {', '.join(missing)}; the record is of another version")
    frame = frame.drop(columns="kind").drop_duplicates("epoch", keep="last").sort_values("epoch")
    return frame.reset_index(drop=True)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line. UserError names the file and a broken line."""
    try:
        yield from files.json_lines(path)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: {error}; run again from its checkpoint") from error


def decisions_of(folder: Path) -> pd.DataFrame:
    """Return the decisions of a run folder by step, at most `MOST_STEPS` of them: every k-th from the first
    one on. No rows where nothing was decided. UserError names a broken line."""
    path = folder / DECISIONS_FILE
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(json_lines(path) if path.is_file() else (), start=1):
        if not isinstance(step := line.get("decision"), int):
            raise UserError(f"{path}: line {number} has no step; run again from its checkpoint")
        entry = {k.removeprefix(_PREFIX): v for k, v in line.items() if k.startswith(_PREFIX)}
        found.setdefault(step, {}).update(_decided(entry))
        if (timed := entry.get("timed_step")) is not None:
            times = {name: entry.get(f"timed_{name}") for name in _TIMES}
            found.setdefault(int(timed) + 1, {}).update(times)
    table = _typed([{"step": step, **found[step]} for step in sorted(found)])
    return table.iloc[:: max(1, math.ceil(len(table) / MOST_STEPS))].reset_index(drop=True)


def _decided(line: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one decision; none where a policy only records."""
    branch = line.get("branch")
    if branch is None:
        return {}
    numbers = [float(number) for number in line.get("energies") or ()]
    norms = [math.sqrt(energy) if energy > 0 else 0.0 for energy in numbers[:3]]
    found = {name: line.get(name) for name in _DECIDED}
    found["factor"] = line.get(branch) if branch in _SENT else 1.0
    if norms:
        found |= {"norm_before": norms[0], "norm_after": norms[_SENT.get(branch, 0)]}
    if len(numbers) > 3:
        found["raw_norms"] = numbers[3]
        found["sent_norms"] = numbers[3 + _SENT[branch]] if branch in _SENT else None
        found["candidate_norms"] = numbers[3 + _SENT["candidate"]]
    return found


def _typed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """All columns, in order: steps whole numbers, branches words, all else numbers."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=list(DECISIONS))
    types: dict[str, Any] = {"step": "int64", "branch": object}
    numbers = [name for name in DECISIONS if name not in types]
    table[numbers] = table[numbers].apply(pd.to_numeric)
    return table.astype(types)


def counted_line(folder: Path) -> str | None:
    """Return what the network interface of a worker counted, beside the ledger of the exchange, as a line to
    print; None where no interface was read."""
    try:
        summary = summary_of(folder)
    except UserError:
        return None
    if not all(summary.get(key) for key in NETWORK[:2]):
        return None
    from dgc_repro.paper.frame import amount  # imports pandas

    difference = 100 * (summary[NETWORK[0]] / summary[NETWORK[1]] - 1)
    counted, expected, ledger = (amount([summary[key]]) for key in NETWORK)
    return (
        f"network: {counted} sent a worker by its interface, {expected} by the ledger with headers "
        f"({difference:+.2f} %; {ledger} without)"
    )
