"""Hundreds of wrong inputs: each is accepted, or refused with one line and exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import pytest
from fuzzing import VALUES, Outcome
from tiny_run import TINY

from dgc_repro.launch import cli_args, main, measure, reproduce
from dgc_repro.launch.build import SECTIONS
from dgc_repro.launch.overrides import resolved
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.study import build_study
from dgc_repro.launch.typed import made
from dgc_repro.predict import calibrate, prediction

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
VALUES_A_KEY = 2
GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
ONE_LINE_EACH = """
~seed; ~train; ~paths; ~launch.workers; ~compressor; ~
exchange=3; paths=3; train=3; stopping=3; wrap=3; =3
compressor=[]; scale=null; policy={a:1}; model=true; launch=1e23; compressor=é; train.epochs=[1
train.epochs=${nope}; seed=1e23; seed=1,2; model._target_=builtins.dict; policy._target_=os.system
_target_=builtins.dict; --resolve; --cfg; --cfg nope; --nope; -x; word; =; hydra=1
--config-name=nope; --config-path=/nope; hydra/launcher=nope
--multirun model=-1,2; --multirun =3; --multirun seed=0,word
"""
OF_SUBCOMMANDS = """
reproduce dynamic/table1 seed=word; reproduce dynamic/table1 optimizer=-1; reproduce dynamic/table1 =3
reproduce dynamic/table1 --resolve; reproduce dynamic/table1 scale=-1; reproduce =3
reproduce dynamic/table1 scale.seeds=word; reproduce gravac/table3 measure.steps=1e18
reproduce lecture/waiting study.waiting.trials=1e18; netlab; netlab -1; predict =3; predict optimizer=-1
predict workers=1e18; predict -x; calibrate =3; calibrate launch=-1; calibrate sizes=-1
"""
SUBCOMMANDS = [line.strip() for line in OF_SUBCOMMANDS.replace("\n", ";").split(";") if line]
COMMANDS = [line.strip() for line in ONE_LINE_EACH.replace("\n", ";").split(";") if line]
COMMANDS += [f"{group}=-1" for group in GROUPS]


def bad(outcomes: dict[str, Outcome]) -> list[str]:
    """A line for each case that ended in another way than it may."""
    return [
        f"{case}: {outcome.code} {outcome.lines[:3]} {outcome.trace[-600:]}"
        for case, outcome in outcomes.items()
        if not outcome.fine
    ]


def test_no_value_of_any_key_ends_in_a_traceback(tmp_path: Path) -> None:
    outcomes = {}
    with fuzzing.without_training(tmp_path):
        for number, (context, key) in enumerate(fuzzing.keys()):
            for n in range(VALUES_A_KEY):
                override = (
                    f"{key}={VALUES[(number + n * len(VALUES) // VALUES_A_KEY) % len(VALUES)]}"
                )
                case = " ".join([*context, override])
                outcomes[case] = fuzzing.attempt(context, override)
    assert len(outcomes) > 500
    assert not bad(outcomes)


def test_no_composition_ends_in_a_traceback(tmp_path: Path) -> None:
    with fuzzing.without_training(tmp_path):
        outcomes = {
            given: fuzzing.command([*(() if given in SUBCOMMANDS else TINY), *given.split()])
            for given in (*COMMANDS, *SUBCOMMANDS)
        }
    assert not bad(outcomes)
    assert not [case for case, outcome in outcomes.items() if outcome.code == 0]


def settings_of_parts() -> list[tuple[str, Callable[[str], Any]]]:
    """(key, what reads it) of all settings of sub-commands, studies and measurements."""
    found: list[tuple[str, Callable[[str], Any]]] = []
    for known in (prediction.KEYS, calibrate.KEYS):
        for key in known:
            found.append((key, lambda o, known=known: cli_args.read([o], "", known, SECTIONS)))
    for name in reproduce.artifacts():
        node = resolved(reproduce._artifact(name))
        for part, settings in node.get("study", {}).items():
            for key in settings:

                def studied(o: str, part: str = part, node: Any = node) -> None:
                    build_study(reproduce._part_of(node["study"], part, [o]))

                found.append((f"study.{part}.{key}", studied))
        for key in node.get("measure", {}):

            def measured(o: str, node: Any = node) -> None:
                stated = {**node["measure"], "repeats": 3}
                settings = reproduce._overridden(stated, [o], "measure.")
                made(measure.MeasureSettings, settings, "measure")

            found.append((f"measure.{key}", measured))
    return found


def test_no_setting_of_a_study_a_measurement_or_a_sub_command_ends_in_a_traceback() -> None:
    outcomes = {}
    for key, read in settings_of_parts():
        for value in VALUES:
            act = lambda o=f"{key}={value}", read=read: read(o)  # noqa: E731
            outcomes[f"{key}={value}"] = fuzzing.watched(lambda act=act: main.answer(act))
    assert len(outcomes) > 500
    assert not bad(outcomes)
