"""Mirrors runs to Weights & Biases (wandb), for a dashboard. docs/sweeps.md shows the commands.

The record in the run folder is the source; the mirror can be written from it again at any time. A run that
continues from a checkpoint therefore starts a new mirror under the same id and first logs what the record
already holds: wandb cannot append to an offline run.

Everything that wandb writes, its debug logs aside, is in ``<run folder>/wandb``. Without a key the mode is
offline, and ``wandb sync`` uploads later. An error inside wandb is printed once on standard error and the run
continues without wandb; only ``mode=online`` without a key, and a missing wandb, are refused before training.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from dgc_repro.checked import Rule, checked, one_of
from dgc_repro.errors import UserError
from dgc_repro.sink.interface import Metrics, RunInfo
from dgc_repro.sink.jsonl import RECORD_FILES, EverySteps, replay

MODES = ("offline", "online", "disabled")
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
LABELS_AS_TAGS = ("paper", "artifact", "compressor", "policy", "scale")
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
    """The open wandb run, if any. ``failed``: wandb raised an error."""

    run: Any = None
    library: Any = None
    folder: Path = Path()
    failed: bool = False
    exit_code: int = 1
    notes: list[str] = field(default_factory=list)


@checked
class Wandb:
    """Logs every epoch and every ``every_steps``-th step (0: no steps).

    ``entity`` null is the default entity of the key. ``group`` null is the name of the run without seed and
    hash, so that the seeds of one setting are one group. A paper's run is named after its row: there the
    group ends in a hash of the settings. ``tags`` are added to those made from the config.
    """

    project: Annotated[str, Rule("a name", bool), "dgc_repro is usual"] = "dgc_repro"
    entity: str | None = None
    mode: Annotated[str, one_of(MODES), "offline needs no key"] = "offline"
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
        self._session.notes.append(text)
        notes = "\n".join(self._session.notes)
        self._try(lambda run: setattr(run, "notes", notes))

    def finish(self, summary: Mapping[str, Any]) -> None:
        is_finished = summary.get("status") == "finished"
        self._session.exit_code = 0 if is_finished else 1
        new = {key: value for key, value in summary.items() if "/" not in key and key != "step"}
        self._try(lambda run: run.summary.update(new))
        if is_finished:
            self._try(self._log_files)

    def close(self) -> None:
        """Close the run. It is marked as failed unless `finish` was called with status "finished"."""
        self._try(lambda run: run.finish(exit_code=self._session.exit_code))
        self._session.run = None
        library, self._session.library = self._session.library, None
        if library is not None:
            # finish() may return before wandb's own process has written the run to disk (seen with 0.31:
            # a file of 7 bytes); teardown() waits for the end of that process.
            try:
                library.teardown()
            except Exception as error:
                self._give_up(error)

    def log_page(self, page: Path, folder: Path, name: str, config: Mapping[str, Any]) -> None:
        """Log the page of a reproduced artifact as a wandb run of its own: its files as a wandb artifact, its
        table and its figures. ``folder``: where wandb writes."""
        self.check()

        def log(run: Any) -> None:
            files = self._artifact(name, "page")
            files.add_dir(str(page))
            run.log_artifact(files)
            values = {"table": self._table(page / "table.csv")}
            for figure in sorted(page.glob("*.png")):
                values[figure.stem] = self._session.library.Image(str(figure))
            run.log(values)

        self._session.exit_code = 0
        self._try_open(folder, name, job_type="reproduce", config=dict(config))
        with staging_in(folder):
            self._try(log)
        self.close()

    def _start(self, run: RunInfo, is_live: bool) -> None:
        self.check()
        labels = labels_of(run.config)
        tags = [labels[key][:TAG_CHARACTERS] for key in LABELS_AS_TAGS if key in labels]
        self._try_open(
            run.folder,
            run.name,
            is_live=is_live,
            group=self.group or setting_name(run),
            job_type=next((kind for kind in ("study", "measure") if kind in run.config), "train"),
            tags=list(dict.fromkeys((*tags, *self.tags))),
            config={
                **config_to_filter(run.config),
                "labels": labels,
                "environment": run.environment,
            },
        )
        if run.start_step or not is_live:
            self._try(lambda _: replay(run.folder, self))

    def _try_open(self, folder: Path, name: str, **described: Any) -> None:
        self._session.folder = folder
        try:
            self._session.run = self._open(folder, name, **described)
        except Exception as error:
            self._give_up(error)

    def _open(self, folder: Path, name: str, *, is_live: bool = True, **described: Any) -> Any:
        wandb = self._session.library = silent_wandb()
        # A run that continues, or is uploaded again, keeps its id.
        kept = folder / "wandb" / "run_id"
        known = kept.read_text(encoding="ascii").strip() if kept.is_file() else ""
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
        opened = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            name=name,
            id=known or None,
            dir=str(folder),
            settings=settings,
            **described,
        )
        if self.mode != "disabled":
            kept.write_text(f"{opened.id}\n", encoding="ascii")
        # An older mirror of this run: one that is synced after another replaces it on the server.
        for other in (folder / "wandb").glob(f"offline-run-*-{opened.id}"):
            if not Path(opened.dir).resolve().is_relative_to(other.resolve()):
                shutil.rmtree(other, ignore_errors=True)
        for axis in AXES:
            opened.define_metric(axis)
        for metric, summary in SUMMARIES.items():
            opened.define_metric(metric, summary=summary)
        return opened

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        logged = {key: value for key, value in values.items() if key != "step"}
        self._try(lambda run: run.log(logged, step=step))

    def _log_files(self, run: Any) -> None:
        """Log the record as a wandb artifact, and the policy trace (or the measured table) as a table."""
        folder = self._session.folder
        record = self._artifact(run.name, "run")
        for path in (folder / name for name in FILES):
            if path.is_file():
                record.add_file(str(path), policy="immutable")  # in place, without a copy
        run.log_artifact(record)
        with staging_in(folder):
            for key, name in TABLES.items():
                if (folder / name).is_file():
                    run.log({key: self._table(folder / name)})

    def _artifact(self, name: str, kind: str) -> Any:
        return self._session.library.Artifact(wandb_name(name), type=kind)

    def _table(self, path: Path) -> Any:
        import pandas as pd

        return self._session.library.Table(dataframe=pd.read_csv(path), allow_mixed_types=True)

    def _try(self, act: Callable[[Any], object]) -> None:
        if self._session.run is not None:
            try:
                act(self._session.run)
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        broken, self._session.run = self._session.run, None
        if not self._session.failed:
            self._session.failed = True
            reason = " ".join(str(error).split())
            print(
                f"wandb: {type(error).__name__}: {reason}; the mirror is incomplete, "
                f"the record in {self._session.folder} is not affected",
                file=sys.stderr,
                flush=True,
            )
        if broken is not None:
            with contextlib.suppress(Exception):  # reported already
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
    with environment(WANDB_MODE=None):  # in offline mode login looks for no key
        try:
            has_key = wandb.login(prompt=False, verify=False)
        except wandb.errors.AuthenticationError as error:
            return " ".join(str(error).split())
    return None if has_key else "found none in WANDB_API_KEY, netrc or wandb's settings"


def staging_in(folder: Path) -> contextlib.AbstractContextManager[None]:
    """wandb copies the files of artifacts into the run folder, not into the user's home."""
    return environment(WANDB_DATA_DIR=str(folder.resolve() / "wandb"))


@contextlib.contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Set environment variables inside a ``with`` block; None removes one."""
    before = {name: os.environ.get(name) for name in values}

    def put(name: str, value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    try:
        for name, value in values.items():
            put(name, value)
        yield
    finally:
        for name, value in before.items():
            put(name, value)


def chart_values(metrics: Metrics) -> dict[str, float]:
    """The numbers among the metrics of a step. Of a policy's decision also ``decision/factor``, the factor
    sent (1 for dense), and ``decision/branch_level``: 0 dense, 1 theta_min, 2 candidate."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    branch = metrics.get("decision/branch")
    if branch in BRANCHES:
        factor = 1.0 if branch == "dense" else numbers.get(f"decision/{branch}")
        numbers |= {"decision/branch_level": BRANCHES.index(branch)}
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
    kept = {key: value for key, value in config.items() if key not in ("paths", "sink", "wrapper")}
    wrappers = config.get("wrapper") or {}
    return kept | {
        "wrapper": {name: wrappers[name] for name in config.get("wrap") or () if name in wrappers}
    }


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """One word for each part of the setting, to filter and group by: ``labels.compressor``, ..."""
    experiment = config.get("experiment") or {}
    scale = config.get("scale")
    of_paper = ("paper", "artifact") if is_of_a_paper(config) else ()
    labels = {
        **{key: experiment.get(key) for key in of_paper},
        "row": experiment.get("row"),
        "compressor": component(config.get("compressor")),
        "wrap": "+".join(filter(None, map(component, config.get("wrap") or ()))),
        "policy": component(config.get("policy")),
        "scale": scale.get("name") if isinstance(scale, Mapping) else scale,
    }
    return {key: str(value) for key, value in labels.items() if value not in (None, "")}


def component(setting: Any) -> str | None:
    """``uniform`` for dgc_repro.compressor.uniform.Uniform; a name without a dot as it is."""
    target = setting.get("_target_") if isinstance(setting, Mapping) else setting
    if target is None:
        return None
    parts = str(target).split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


def wandb_name(text: str) -> str:
    """The text with ``-`` for characters that wandb does not allow in the name of an artifact."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:128]
