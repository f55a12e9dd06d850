"""What the setting of a run is called.

Runs of one's own are called by config keys alone, those of `MAY_NAME` (`named`). A name is the compressor
with its strength, the wrappers, and the keys in which the settings differ, such as ``TopK density=0.01 +
error feedback, lr=0.2``. A key is in the name of every setting of a compressor that was trained with several
of its values, and else where its value is not the usual one of all these runs.

The benchmark's settings are called what people say (`name_of`): ``redsync_0.01_True`` is "RedSync 1 %, one
mean". A setting's own name (``experiment.method``) has its method, its number, and further words.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dgc_repro.names import default_of
from dgc_repro.paper.facts import short
from dgc_repro.paper.records import FREE_KEYS, Run

MAY_NAME = (
    *("compressor", "wrap", "wrapper", "policy", "optimizer", "schedule", "model", "dataset"),
    *("exchange.unit", "exchange.overlap", "exchange.aggregation"),
    *("train.epochs", "train.steps_share", "train.batch_size", "train.accumulate"),
    *("train.local_steps",),
    *("train.outer_lr", "train.outer_momentum", "train.precision", "train.compile"),
    *("train.fragments", "train.delay_steps", "train.mixing"),
    *("train.on_nonfinite", "train.step_time", "train.compute_ms", "train.channels_last"),
    *("train.label_smoothing", "train.resume_from", "stopping"),
    *("launch.kind", "launch.workers", "launch.device"),
    *("launch.backend", "launch.threads"),
    *("network.rate", "network.rates", "network.latency", "network.loss", "network.schedule"),
    *("network.workers_per_node", "network.node_rate", "network.node_latency", "network.allreduce"),
    *("network.efficiency", "network.software", "network.as_workers", "network.message_scale"),
)
"""The config keys that may name a setting, and groups of such keys. No result is among them."""
STRENGTHS = ("density", "factor", "bits", "levels", "rank", "k")
"""Settings of a compressor that stand in its name wherever they are set, unless the policy moves them."""
TARGET = "_target_"
COMPRESSOR = f"compressor.{TARGET}"
CHOICES = (f".{TARGET}", "launch.kind")
MOST_LETTERS = 600  # of a name
USUAL_WRAPPER = "per_layer"
"""Named only where settings differ in it."""
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "uncompressed": {"dense": "no compression"},
    "half precision": {"bf16": "half precision", "fp16": "half precision, fp16"},
    "fewer bits": {
        "uniform": "{} bits",
        "qsgd": "QSGD, {} levels",
        "natural": "natural compression",
        "terngrad": "TernGrad",
        "loco": "LoCo, {} bits",
        "blockfloat": "{}",
        "eden": "EDEN, {} bits",
        "drive": "DRIVE",
        "adaqs": "AdaQS",
        "stepwise": "stepwise bits",
    },
    "sparse": {
        "topk": "top-k {%}",
        "magnitude": "top-k of the model {%}",
        "randomk": "random-k {%}",
        "threshold": "threshold {%}",
        "redsync": "RedSync {%}",
        "sidco": "SIDCo {%}",
        "sparseloco": "SparseLoCo {%}",
        "dgc_sampled": "sampled top-k {%}",
        "dgc": "DGC {%}",
        "accordion": "Accordion",
        "scadles": "ScaDLES",
        "gravac": "GraVAC",
    },
    "low rank": {"powersgd": "PowerSGD, rank {}"},
    "signs": {"ef_signsgd": "EF-signSGD", "onebit": "1 bit", "signsgd": "signSGD"},
    "another optimizer, or local steps": {
        "onebit_adam": "1-bit Adam",
        "adam": "Adam",
        "demo": "DeMo, {} a block",
        "diloco": "DiLoCo, {} steps",
        "streaming": "Streaming DiLoCo, {} steps",
        "muloco": "MuLoCo, {} steps",
        "muon": "Muon",
        "muon_uniform": "Muon, {} bits",
        "dion": "Dion, rank {%}",
    },
}
"""The benchmark's methods by family, each with what people say; ``{}``: its number, ``{%}``: in percent."""
WORDS = {
    "plain": "no error feedback",
    "sharded": "in shards",
    "unmasked": "unmasked",
    "True": "one mean",
    "False": "",
}
OUTER = "outer"
Settings = dict[str, Any]


class Named(NamedTuple):
    """``names``: of each run's setting. ``usual``: the values of keys that some names leave out, in words."""

    names: list[str]
    usual: str


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The keys of `MAY_NAME` in a config, dotted, with their values. Keys without a value, and the settings
    of wrappers that the run does not use, are left out. A key that a section of the record lacks came later:
    it has its default."""
    found: Settings = {}
    for name in MAY_NAME:
        group, _, key = name.partition(".")
        node = config.get(group)
        if key and isinstance(node, Mapping):
            node = node[key] if key in node else default_of(name)
        if name == "wrapper" and node:
            node = {key: node.get(key) for key in config.get("wrap") or ()}
        found |= dict(flat(node, name))
    return {k: v for k, v in found.items() if v is not None and k.split(".")[-1] not in FREE_KEYS}


def flat(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested config, by dotted key."""
    if not isinstance(node, Mapping):
        yield name, node
        return
    for key, value in node.items():
        yield from flat(value, f"{name}.{key}" if name else str(key))


def named(runs: Sequence[Run]) -> Named:
    """Name the setting of each run. Two names are equal only where the settings are."""
    own = [settings_of(run.config) for run in runs]
    for run, settings in zip(runs, own, strict=True):
        if run.precision:  # not "half", which leaves it to the device
            settings["train.precision"] = run.precision
    kinds = _kinds([str(one.get(COMPRESSOR, "no compressor")) for one in own])
    heads = _heads(own, kinds)
    keys = [
        key for key in dict.fromkeys(key for one in own for key in one)
        if key not in ("wrap", COMPRESSOR)
    ]  # fmt: skip
    shown: list[list[str]] = [[] for _ in runs]
    hidden: dict[tuple[str, str], Any] = {}
    for key in keys:
        owners = [_owner(run.config, key) for run in runs]
        values = [_exact(one.get(key)) for one in own]
        of_kind: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)
        of_all: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
        for kind, owner, value in zip(kinds, owners, values, strict=True):
            of_kind[kind, owner].add(value)
            of_all[owner][value] += 1
        usual = {owner: counts.most_common(1)[0][0] for owner, counts in of_all.items()}
        for place, (kind, owner, value) in enumerate(zip(kinds, owners, values, strict=True)):
            if owner is None or _is_strength(key, own[place]):
                continue  # the record is older than the group, or the head has the value
            if len(of_kind[kind, owner]) > 1 or value != usual[owner]:
                shown[place].append(key)
            elif len(of_all[owner]) > 1:
                hidden[key, owner] = own[place].get(key)
    in_words = [*(key for one in shown for key in one), *(key for key, _ in hidden)]
    labels = _labels(list(dict.fromkeys(in_words)))
    names = [
        ", ".join([head, *(f"{labels[key]}={_text(key, one.get(key))}" for key in keys)])
        for head, one, keys in zip(heads, own, shown, strict=True)
    ]
    left_out = [f"{labels[key]}={_text(key, value)}" for (key, _), value in hidden.items()]
    return Named([*map(bounded, names)], bounded(", ".join(dict.fromkeys(left_out))))


def bounded(text: str) -> str:
    """Return a name without its middle where it has more than `MOST_LETTERS`: a stranger's value may have
    200,000, more than a figure holds. Names that differ stay different, by a hash."""
    if len(text) <= MOST_LETTERS:
        return text
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: MOST_LETTERS // 2]}...({len(text):,} letters, {own})"


def _exact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _text(key: str, value: Any) -> str:
    if key.endswith(f".{TARGET}"):
        return str(value).rpartition(".")[2]
    if isinstance(value, bool):
        return str(value).lower()
    is_rounded = isinstance(value, float) and float(short(value)) != value
    return str(value) if is_rounded else short(value)


def _kinds(targets: Sequence[str]) -> list[str]:
    """The compressor's class, with its module where another class has this name."""
    several = Counter(target.rpartition(".")[2] for target in dict.fromkeys(targets))
    return [t if several[t.rpartition(".")[2]] > 1 else t.rpartition(".")[2] for t in targets]


def _owner(config: Mapping[str, Any], key: str) -> str | None:
    """The class of the component that has a key, else its group; None where the run lacks the group or does
    not use the wrapper. Runs whose owners of a key differ do not differ in the key."""
    group, _, rest = key.partition(".")
    if group == "wrapper":
        name = rest.partition(".")[0]
        return name if name in (config.get("wrap") or ()) else None
    section = config.get(group)
    if section is None:
        return None
    is_choice = rest == TARGET or not isinstance(section, Mapping)
    return group if is_choice else str(section.get(TARGET, group))


def _is_strength(key: str, own: Settings) -> bool:
    """Whether the head names a key: set, or without a value, which is no word in a name."""
    group, _, name = key.partition(".")
    is_moved = name == own.get("policy.field") and key in own
    return group == "compressor" and name in STRENGTHS and not is_moved


def _heads(own: Sequence[Settings], kinds: Sequence[str]) -> list[str]:
    """The compressor, its strength, and its wrappers in their order, without the usual one where no other
    setting differs in it alone."""
    short = [(kind, *_wraps(one, USUAL_WRAPPER)) for one, kind in zip(own, kinds, strict=True)]
    wraps = defaultdict(set)
    for head, one in zip(short, own, strict=True):
        wraps[head].add(_exact(one.get("wrap")))
    heads = []
    for head, one in zip(short, own, strict=True):
        strength = [
            f"{key.partition('.')[2]}={_text(key, value)}"
            for key, value in one.items()
            if _is_strength(key, one)
        ]
        shown = _wraps(one) if len(wraps[head]) > 1 else head[1:]
        heads.append(" + ".join([" ".join([head[0], *strength]), *shown]))
    return heads


def _wraps(one: Settings, without: str = "") -> list[str]:
    """The wrappers of a setting in words."""
    return [name.replace("_", " ") for name in one.get("wrap") or () if name != without]


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """A key's last part, of a choice (``launch=``, ``policy=``) its group; with the section where another key
    has this last part."""
    last = {key: key.split(".")[-2 if key.endswith(CHOICES) else -1] for key in keys}
    several = Counter(last.values())
    return {
        key: ".".join(key.split(".")[-2:]) if several[part] > 1 else part
        for key, part in last.items()
    }


def is_of(setting: str, method: str) -> bool:
    """Whether a setting is of a method: ``topk_0.01`` is of ``topk``."""
    return setting == method or setting.startswith(f"{method}_")


def family_of(setting: str) -> str:
    """Return the family of a setting's method; empty for a method that is not known."""
    return _known(setting)[0]


def _known(setting: str) -> tuple[str, str, str]:
    """Family, method and name of a setting's method, that of the longest name that it begins with."""
    known = [
        (family, method, name)
        for family, own in FAMILIES.items()
        for method, name in own.items()
        if is_of(setting, method)
    ]
    return max(known, key=lambda one: len(one[1]), default=("", "", ""))


def name_of(setting: str) -> str:
    """Return what people call a setting; of a method that is not known, its own name."""
    _, method, name = _known(setting)
    if not method:
        return setting
    parts = setting.removeprefix(method).split("_")[1:]
    if "{" in name:
        number = parts.pop(0) if parts else ""
        share = _percent(number) if "{%}" in name else number.upper()
        if not share:
            return setting
        name = name.replace("{%}", share).replace("{}", share)
    return ", ".join(filter(None, [name, *map(_word, parts)]))


def _word(part: str) -> str:
    if part.startswith(OUTER):
        return f"outer rate {part.removeprefix(OUTER)}"
    return WORDS.get(part, part)


def _percent(number: str) -> str:
    try:
        share = 100 * float(number)
    except ValueError:
        return ""
    return f"{share:.3g} %" if math.isfinite(share) else ""
