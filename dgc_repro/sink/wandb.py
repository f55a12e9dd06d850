"""A mirror of the record in wandb, with axes, summaries, group and tags set for a dashboard.

Offline needs no key: ``wandb sync <run folder>/wandb/offline-*`` sends it later. Everything of
wandb's lies in the run folder. Whatever fails in wandb is said once, on standard error, and
training goes on without the mirror; only ``online`` without a key is an error, before training.

In the dashboard, group by ``labels.paper``, ``labels.artifact``, ``labels.row``,
``labels.compressor``, ``labels.wrap``, ``labels.policy``, ``labels.scale`` or ``seed``.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from dgc_repro.checked import Rule, checked, one_of
from dgc_repro.errors import UserError
from dgc_repro.sink.interface import Metrics, RunInfo
from dgc_repro.sink.jsonl import EverySteps

MODES = ("offline", "online", "disabled")
STEP_AXIS = ("train/*", "policy/rung", "comm/payload_bytes", "decision/*")
"""What each step tells; all else is told by epoch."""
BRANCHES = ("dense", "theta_min", "candidate")
SUMMARIES = {
    "test/accuracy_percent": "max,last",
    "validation/accuracy_percent": "max,last",
    "test/perplexity": "min,last",
    "validation/perplexity": "min,last",
    "test/loss": "min,last",
    "validation/loss": "min,last",
}
"""wandb keeps the last value of all others."""
INIT_TIMEOUT_SECONDS = 30.0
FINISH_TIMEOUT_SECONDS = 60.0
"""An unreachable server must not hold a run that is done; what is left stays on disk."""
GROUPED = ("paper", "artifact", "scale")
TAG_CHARACTERS = 64
"""wandb refuses longer ones."""
Tag = Annotated[
    str,
    Rule(f"a word of 1 to {TAG_CHARACTERS} characters", lambda tag: 0 < len(tag) <= TAG_CHARACTERS),
]


@dataclass
class Session:
    """What is open: nothing before the start, after the end, and after a failure."""

    run: Any = None
    library: Any = None
    failed: bool = False
    exit_code: int = 1
    notes: list[str] = field(default_factory=list)


@checked
class Wandb:
    """Mirrors every epoch and every ``every_steps``-th step (0: none).

    ``entity`` null is the key's own; ``group`` null is paper/artifact/scale; ``tags`` are put
    beside those that the config gives.
    """

    project: Annotated[str, Rule("a name", bool), "dgc_repro is usual"] = "dgc_repro"
    entity: str | None = None
    mode: Annotated[str, one_of(MODES), "offline needs no key"] = "offline"
    group: str | None = None
    tags: Annotated[Sequence[Tag], "as [mine, other]"] = ()
    every_steps: EverySteps = 10
    _session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    def check(self) -> None:
        """UserError for ``online`` without a key; opens no connection and starts no process."""
        if self.mode != "online":
            return
        wandb = silent_wandb()
        given = os.environ.pop("WANDB_MODE", None)  # sink.mode decides; offline, login finds no key
        try:
            found = wandb.login(prompt=False, verify=False)
            reason = "found none in WANDB_API_KEY, netrc or wandb's settings"
        except wandb.errors.AuthenticationError as error:
            found, reason = False, " ".join(str(error).split())
        finally:
            if given is not None:
                os.environ["WANDB_MODE"] = given
        if not found:
            raise UserError(
                f"sink.mode: online needs a wandb key, {reason}; run `wandb login`, or set sink.mode=offline"
            )

    def start(self, run: RunInfo) -> None:
        self.check()
        try:
            self._session.run = self._open(run)
        except Exception as error:
            self._give_up(error)

    def step(self, metrics: Metrics) -> None:
        if self.every_steps and int(metrics["step"]) % self.every_steps == 0:
            self._tell(lambda wandb_run: wandb_run.log(drawable(metrics)))

    def epoch(self, record: Metrics) -> None:
        self._tell(lambda wandb_run: wandb_run.log(dict(record)))

    def note(self, text: str) -> None:
        self._session.notes.append(text)
        notes = "\n".join(self._session.notes)
        self._tell(lambda wandb_run: setattr(wandb_run, "notes", notes))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._session.exit_code = 0 if summary.get("status") == "finished" else 1
        self._tell(lambda wandb_run: wandb_run.summary.update({"run": dict(summary)}))

    def close(self) -> None:
        """A run that was not told that it finished is marked as failed."""
        self._tell(lambda wandb_run: wandb_run.finish(exit_code=self._session.exit_code))
        self._session.run = None
        library, self._session.library = self._session.library, None
        if library is not None:
            # finish() may come back before wandb's process has written the run to disk (seen with
            # 0.31: a file of 7 bytes); this waits until that process has ended.
            try:
                library.teardown()
            except Exception as error:
                self._give_up(error)

    def _open(self, run: RunInfo) -> Any:
        wandb = self._session.library = silent_wandb()
        settings = wandb.Settings(
            silent=True,
            console="off",  # it would record every redraw of the progress bar
            disable_git=True,  # the environment has the commit
            save_code=False,
            init_timeout=INIT_TIMEOUT_SECONDS,
        )
        if "finish_timeout" in wandb.Settings.model_fields:  # not in every version
            settings.finish_timeout = FINISH_TIMEOUT_SECONDS
        labels = labels_of(run.config)
        opened = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            group=self.group or "/".join(labels[key] for key in GROUPED if key in labels) or None,
            job_type=labels.get("row"),
            name=run.name,
            tags=list(
                dict.fromkeys(tag[:TAG_CHARACTERS] for tag in (*labels.values(), *self.tags))
            ),
            id=run_id(run.folder),
            # From the beginning again: the mirror of a run that left no checkpoint is replaced.
            resume="allow" if run.start_step else None,
            dir=str(run.folder),
            config={**run.config, "labels": labels, "environment": run.environment},
            settings=settings,
        )
        opened.define_metric("*", step_metric="epoch")
        for name in STEP_AXIS:
            opened.define_metric(name, step_metric="step")
        for name, summary in SUMMARIES.items():
            opened.define_metric(name, step_metric="epoch", summary=summary)
        for axis in ("step", "epoch"):
            opened.define_metric(axis, hidden=True)
        return opened

    def _tell(self, act: Callable[[Any], object]) -> None:
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
                f"wandb: {type(error).__name__}: {reason}; training goes on without the mirror",
                file=sys.stderr,
                flush=True,
            )
        if broken is not None:
            try:
                broken.finish(exit_code=1)
            except Exception:
                return  # said already: a mirror that is broken may not even close


def silent_wandb() -> Any:
    """The library, which reads how much to say at its first import, as its own process does."""
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def drawable(metrics: Metrics) -> dict[str, float]:
    """What a dashboard can draw of a step: its numbers, and of a policy's decision (keys ``decision/...``)
    the factor that was sent, 1 for dense, and its branch as a level: 0 dense, 1 theta_min, 2 candidate."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    branch = metrics.get("decision/branch")
    if branch in BRANCHES:
        factor = 1.0 if branch == "dense" else numbers.get(f"decision/{branch}")
        numbers |= {"decision/branch_level": BRANCHES.index(branch)}
        numbers |= {} if factor is None else {"decision/factor": factor}
    return numbers


def labels_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The words that runs are grouped by, as on the command line; without those not in use."""
    experiment = config.get("experiment") or {}
    scale = config.get("scale")
    labels = {
        "paper": experiment.get("paper"),
        "artifact": experiment.get("artifact"),
        "row": experiment.get("row"),
        "compressor": component(config.get("compressor")),
        "wrap": "+".join(filter(None, map(component, config.get("wrap") or ()))),
        "policy": component(config.get("policy")),
        "scale": scale.get("name") if isinstance(scale, Mapping) else scale,
    }
    return {key: str(value) for key, value in labels.items() if value not in (None, "")}


def component(setting: Any) -> str | None:
    """``uniform`` for dgc_repro.compressor.uniform.Uniform, whose file and overlay have that name.

    A name that is no ``_target_`` stays as it is.
    """
    target = setting.get("_target_") if isinstance(setting, Mapping) else setting
    if target is None:
        return None
    parts = str(target).split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


def run_id(folder: Path) -> str:
    """The folder's name and a random end, made once and kept in the folder.

    So a run that is resumed goes on under its id, and the same command in a fresh clone does not
    write over somebody's run of the same name.
    """
    kept = folder / "wandb" / "run_id"
    if kept.is_file() and (found := kept.read_text(encoding="ascii").strip()):
        return found
    made = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', folder.name)[:100]}-{secrets.token_hex(4)}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(f"{made}\n", encoding="ascii")
    return made
