"""Mirrors runs to Weights & Biases (wandb), for a dashboard. docs/sweeps.md shows the commands.

The record in the run folder is the source; the mirror can be written from it again at any time. A run that
continues from a checkpoint therefore starts a new mirror under the same id and first logs what the record
already holds: wandb cannot append to an offline run.

Everything that wandb writes, its debug logs aside, is in ``<run folder>/wandb``. Without a key the mode is
offline, and ``wandb sync`` uploads later. An error inside wandb is printed once on standard error and the run
continues without wandb; only ``mode=online`` without a key, and a missing wandb, are refused before training.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from dgc_repro import files
from dgc_repro.checked import Rule, checked, one_of
from dgc_repro.errors import UserError
from dgc_repro.sink.interface import Metrics, RunInfo
from dgc_repro.sink.jsonl import RECORD_FILES, EverySteps, replay

AXES = (
    *("epoch", "comm/wire_bytes", "comm/payload_bytes"),
    *("time/modelled_seconds", "time/train_seconds"),
)
"""Metrics to choose as the x-axis of a chart, beside wandb's own Step, which is the training step. wandb
needs an x-axis in the same log call as the metrics drawn over it: the record of an epoch has all of these."""
SUMMARIES = {
    "test/accuracy_percent": "max,last",
    "test/perplexity": "min,last",
    "test/loss": "min,last",
}
"""Of all other metrics wandb keeps the last value. The validation metrics are among them, because the
``metric`` of a wandb sweep must be one number."""
BRANCHES = ("dense", "theta_min", "candidate")
TABLES = {"policy/trace": "policy.csv", "measure/table": "repeats.csv", "study/table": "rows.csv"}
"""Files of a run folder that are also logged as tables."""
FILES = ("config.yaml", "environment.json", "summary.json", *RECORD_FILES, *TABLES.values())
TAG_CHARACTERS = 64
"""wandb refuses longer tags."""
FINISH_TIMEOUT_SECONDS = 60.0
"""wandb itself would wait without limit for an unreachable server. What is left stays on disk."""
Tag = Annotated[
    str,
    Rule(f"a word of 1 to {TAG_CHARACTERS} characters", lambda tag: 0 < len(tag) <= TAG_CHARACTERS),
]


@dataclass
class Session:
    """The open wandb run, if any, and where it writes. ``failed``: wandb raised an error."""

    run: Any = None
    folder: Path | None = None
    failed: bool = False
    exit_code: int = 1


@checked
class Wandb:
    """Logs every epoch and some steps to wandb.

    ``project``: of wandb. ``entity``: of wandb; null is the default entity of the key. ``mode``: offline
    needs no key. ``group``: of wandb; null is the name of the run without seed and hash, so that the seeds
    of one setting are one group; a paper's run is named after its row, and its group ends in a hash of the
    settings. ``tags``: added to those that are made from the config. ``every_steps``: steps between two
    that are logged; 0: no steps.
    """

    project: Annotated[str, Rule("a name", bool), "dgc_repro is usual"] = "dgc_repro"
    entity: str | None = None
    mode: Annotated[str, one_of(("offline", "online", "disabled")), "offline needs no key"] = (
        "offline"
    )
    group: str | None = None
    tags: Annotated[Sequence[Tag], "as [mine, other]"] = ()
    every_steps: EverySteps = 10
    _session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    def check(self) -> None:
        """Raise UserError if wandb is missing, or if ``online`` has no key. Connects to nothing."""
        require_installed("wandb", "wandb")
        if self.mode == "online" and (reason := key_problem()):
            raise UserError(
                f"sink.mode: online needs a wandb key, {reason}; run `wandb login`, or set sink.mode=offline"
            )

    def start(self, run: RunInfo) -> None:
        self._start(run, is_live=True)

    def upload(self, run: RunInfo, summary: Mapping[str, Any]) -> bool:
        """Mirror a finished run from the record in its folder. Returns whether wandb raised no error."""
        self._start(run, is_live=False)
        self.finish(summary)
        self.close()
        return not self._session.failed

    def step(self, metrics: Metrics) -> None:
        if self.every_steps and int(metrics["step"]) % self.every_steps == 0:
            self._log(int(metrics["step"]), chart_values(metrics))

    def epoch(self, record: Metrics) -> None:
        self._log(int(record["step"]), record)

    def note(self, text: str) -> None:
        with self._reporting():
            if run := self._session.run:
                run.notes = "\n".join(filter(None, (run.notes, text)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        is_finished = summary.get("status") == "finished"
        self._session.exit_code = 0 if is_finished else 1
        with self._reporting():
            if run := self._session.run:
                new = {k: v for k, v in summary.items() if "/" not in k and k != "step"}
                run.summary.update(new)
                if is_finished:
                    self._log_files()

    def close(self) -> None:
        """Close the run. It is marked as failed unless `finish` was called with status "finished"."""
        if self._session.folder is None:
            return
        with self._reporting():
            if run := self._session.run:
                run.finish(exit_code=self._session.exit_code)
        self._session.run = None
        with self._reporting():
            # finish() may return before wandb's own process has written the run to disk (seen with 0.31:
            # a file of 7 bytes); teardown() waits for the end of that process.
            silent_wandb().teardown()
        self._session.folder = None

    def log_page(self, page: Path, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        """Log the page of a reproduced artifact as a wandb run of its own: its files as a wandb artifact, its
        table and its figures. ``folder``: where wandb writes."""
        self.check()
        self._open(folder, name, job_type="reproduce", config=dict(config))
        with self._reporting():
            if run := self._session.run:
                wandb = silent_wandb()
                files = wandb.Artifact(wandb_name(name), type="page")
                values = {path.stem: wandb.Image(str(path)) for path in sorted(page.glob("*.png"))}
                with staging_in(folder):
                    files.add_dir(str(page))
                    run.log_artifact(files)
                    numbers = table_of(page.parent / "numbers.csv", artifact=page.name)
                    run.log({"table": numbers, **values})
        self._session.exit_code = 0
        self.close()

    def _start(self, run: RunInfo, is_live: bool) -> None:
        self.check()
        self._open(
            run.folder,
            run.name,
            is_live=is_live,
            group=self.group or setting_name(run),
            job_type=next((kind for kind in ("study", "measure") if kind in run.config), "train"),
            tags=list(dict.fromkeys((*tags_of(run.config), *self.tags))),
            config={**config_to_filter(run.config), "environment": run.environment},
        )
        if run.start_step or not is_live:
            replay(run.folder, self)

    def _open(self, folder: Path, name: str, *, is_live: bool = True, **described: Any) -> None:
        """Open a wandb run. One that continues, or is uploaded again, keeps its id. Raises UserError where
        the folder that wandb writes to is a link."""
        files.refuse_link(folder / "wandb", "sink.mirror")
        self._session.folder = folder
        with self._reporting():
            wandb = silent_wandb()
            kept = folder / "wandb" / "run_id"
            settings = wandb.Settings(
                silent=True,
                console="off",  # wandb would record every redraw of the progress bar
                finish_timeout=FINISH_TIMEOUT_SECONDS,
                # A mirror that is written later must not show the machine and the commit of that moment.
                disable_git=not is_live,
                x_disable_stats=not is_live,
                x_disable_meta=not is_live,
                x_disable_machine_info=not is_live,
            )
            self._session.run = run = wandb.init(
                project=self.project,
                entity=self.entity,
                mode=self.mode,
                name=name,
                id=files.text(kept).strip() if kept.is_file() else None,
                dir=str(folder),
                settings=settings,
                **described,
            )
            if self.mode != "disabled":
                files.replace(kept, f"{run.id}\n".encode())
            # An older mirror of this run: one that is synced after another replaces it on the server.
            for other in (folder / "wandb").glob(f"offline-run-*-{run.id}"):
                if not Path(run.dir).resolve().is_relative_to(other.resolve()):
                    shutil.rmtree(other, ignore_errors=True)
            for metric in (*AXES, *SUMMARIES):
                run.define_metric(metric, summary=SUMMARIES.get(metric))

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        with self._reporting():
            if run := self._session.run:
                run.log({key: value for key, value in values.items() if key != "step"}, step=step)

    def _log_files(self) -> None:
        """Log the record as a wandb artifact, and the policy trace (or the measured table) as a table."""
        folder, run = self._session.folder, self._session.run
        assert folder is not None
        record = silent_wandb().Artifact(wandb_name(run.name), type="run")
        for path in (folder / name for name in FILES):
            if path.is_file():
                record.add_file(str(path), policy="immutable")  # in place, without a copy
        run.log_artifact(record)
        with staging_in(folder):
            for key, name in TABLES.items():
                if (folder / name).is_file():
                    run.log({key: table_of(folder / name)})

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Print the first error that wandb raises inside, and close its run: training goes on without it."""
        session = self._session
        try:
            yield
        except Exception as error:
            if not session.failed:
                print(
                    f"wandb: {type(error).__name__}: {' '.join(str(error).split())}; the mirror is "
                    f"incomplete, the record in {session.folder} is not affected",
                    file=sys.stderr,
                    flush=True,
                )
            session.failed = True
            broken, session.run = session.run, None
            with suppress(Exception):  # reported already
                if broken is not None:
                    broken.finish(exit_code=1)


def require_installed(package: str, extra: str) -> None:
    """Raise UserError if an optional package is missing. Imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{package} is not installed; pip install 'dgc_repro[{extra}]'")


def silent_wandb() -> Any:
    """Import wandb. Without WANDB_SILENT, login prints where it has found the key."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def key_problem() -> str | None:
    """Why wandb cannot go online, None if it has a key. Connects to nothing."""
    wandb = silent_wandb()
    with environment("WANDB_MODE", None):  # in offline mode login looks for no key
        try:
            has_key = wandb.login(prompt=False, verify=False)
        except wandb.errors.AuthenticationError as error:
            return " ".join(str(error).split())
    return None if has_key else "found none in WANDB_API_KEY, netrc or wandb's settings"


@contextmanager
def environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable inside a ``with`` block; None removes it."""

    def put(value: str | None) -> None:
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value

    before = os.environ.get(name)
    put(value)
    try:
        yield
    finally:
        put(before)


def staging_in(folder: Path) -> Any:
    """wandb copies the files of artifacts into the run folder, not into the user's home."""
    return environment("WANDB_DATA_DIR", str(folder.resolve() / "wandb"))


def table_of(path: Path, **where: str) -> Any:
    """A wandb table of a CSV file; ``where``: of its rows with these values, without these columns."""
    import pandas as pd

    content = files.content(path)
    files.refuse_large_csv(content)
    table = pd.read_csv(io.BytesIO(content))
    for column, value in where.items():
        table = table[table.pop(column) == value]
    return silent_wandb().Table(dataframe=table, allow_mixed_types=True)


def chart_values(metrics: Metrics) -> dict[str, float]:
    """The numbers among the metrics of a step. Of a policy's decision also ``decision/factor``, the factor
    sent (1 for dense), and ``decision/branch_level``: 0 dense, 1 theta_min, 2 candidate."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    branch = metrics.get("decision/branch")
    if branch in BRANCHES:
        numbers["decision/branch_level"] = BRANCHES.index(branch)
        factor = 1.0 if branch == "dense" else numbers.get(f"decision/{branch}")
        numbers |= {} if factor is None else {"decision/factor": factor}
    return numbers


def setting_name(run: RunInfo) -> str:
    """The name of a run without its end ``-s<seed>-<hash>``: the same for all seeds of a setting. A
    paper's run is named after its row alone, so a hash of its config without seed and scale follows."""
    name = run.name.rpartition(f"-s{run.config.get('seed')}-")[0] or run.name
    if not is_of_a_paper(run.config):
        return name
    kept = {k: v for k, v in config_to_filter(run.config).items() if k not in ("seed", "scale")}
    text = json.dumps(kept, sort_keys=True, default=str)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_of_a_paper(config: Mapping[str, Any]) -> bool:
    """Whether a run belongs to a paper's artifact."""
    return (config.get("experiment") or {}).get("paper") not in (None, "none")


def config_to_filter(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config for wandb, which shows nested keys with dots (``compressor.density``). Leaves out what does
    not describe the training: paths, the sink, and wrappers that are not in ``wrap``."""
    wrappers = {k: v for k, v in config.get("wrapper", {}).items() if k in config.get("wrap", ())}
    kept = {key: value for key, value in config.items() if key not in ("paths", "sink")}
    return kept | {"wrapper": wrappers}


def tags_of(config: Mapping[str, Any]) -> list[str]:
    """Paper, artifact, compressor, policy and scale, one word each."""
    experiment = config.get("experiment") or {}
    scale = config.get("scale")
    words = [
        *([experiment.get("paper"), experiment.get("artifact")] if is_of_a_paper(config) else []),
        component(config.get("compressor")),
        component(config.get("policy")),
        scale.get("name") if isinstance(scale, Mapping) else scale,
    ]
    return [str(word)[:TAG_CHARACTERS] for word in words if word]


def component(setting: Any) -> str | None:
    """``uniform`` for dgc_repro.compressor.uniform.Uniform."""
    return str(setting["_target_"]).split(".")[-2:][0] if setting else None


def wandb_name(text: str) -> str:
    """The text with ``-`` for characters that wandb does not allow in the name of an artifact."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:128]
