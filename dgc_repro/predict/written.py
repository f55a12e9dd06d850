"""How a setting of the benchmark is written: a name, overrides for the command line, lines of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dgc_repro
from dgc_repro.launch.paths import option
from dgc_repro.names import conf_dir
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.tradeoff import stated
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.paper.records import Run


def name_of(run: Run) -> str:
    """What the README's picture calls a setting, and its name in the table."""
    headline, method = stated(workloads()), str(run.method)
    words = headline.names.get(method.removesuffix("_sharded")) if headline else None
    shards = ", averaged in shards" if method.endswith("_sharded") else ""
    return f"{words}{shards} ({method})" if words else method


def python_of(run: Run, *, overlap: bool) -> list[str]:
    """The lines of Python that give a DDP model a run's method, after its warm-up."""
    names: set[str] = {"dgc_repro.exchange.door.attach"}

    def called(node: Mapping[str, Any], *first: str, usual: Mapping[str, Any]) -> str:
        """``usual``: settings that need not be named."""
        names.add(str(node["_target_"]))
        own = {k: v for k, v in node.items() if v is not None and k != "_target_"}
        words = [f"{key}={value!r}" for key, value in own.items() if usual.get(key) != value]
        return f"{str(node['_target_']).rpartition('.')[2]}({', '.join([*first, *words])})"

    own, policy = dict(run.config["compressor"]), run.config["policy"]
    if policy.get("values"):
        own[policy["field"]] = policy["values"][-1]
    nest = called(own, usual={})
    if run.setting("exchange.aggregation") == speed.SHARDED:
        names.add("dgc_repro.compressor.sharded.Sharded")
        nest = f"Sharded({nest})"
    for name in reversed(run.config["wrap"]):
        if name in run.config["wrapper"]:
            nest = called(run.config["wrapper"][name], nest, usual=option("wrapper", name))
    more = ", overlap=True" if overlap else ""
    unit = run.setting("exchange.unit", "layer")
    more += "" if unit == "layer" else f", unit={unit!r}"
    found: dict[str, list[str]] = {}
    for target in names:
        module, _, name = target.rpartition(".")
        is_public = name in dgc_repro._PUBLIC
        found.setdefault("dgc_repro" if is_public else module, []).append(name)
    imports = [
        f"from {module} import {', '.join(sorted(own))}" for module, own in sorted(found.items())
    ]
    return [*imports, f"exchange = attach(model, {nest}{more})"]


def command_of(run: Run) -> str:
    """The overrides of a run's method, as they are typed."""
    own, policy = run.config["compressor"], run.config["policy"]
    words = _typed_group("compressor", _file_of(run), own)
    words.append(f"wrap=[{','.join(run.config['wrap'])}]")
    if policy.get("values"):
        words += _typed_group("policy", _module(policy), policy)
    if (way := run.setting("exchange.aggregation")) != speed.GATHER:
        words.append(f"exchange.aggregation={way}")
    return " ".join(words)


def _file_of(run: Run) -> str:
    """The member of the group of compressors that a run's method is made from."""
    files = conf_dir().glob("compressor/*.yaml")
    names = [file.stem for file in files if f"{run.method}_".startswith(f"{file.stem}_")]
    return max(names, key=len, default=_module(run.config["compressor"]))


def _stated(group: str, name: str) -> dict[str, Any]:
    """What the file of a member says of its own group."""
    found = option(group, name)
    return dict(found.get(group, found))  # a compressor's file may bring its nest too


def _typed_group(group: str, name: str, own: Mapping[str, Any]) -> list[str]:
    """A member of a group, and the keys whose values its file does not have."""
    usual = _stated(group, name)
    changed = {k: v for k, v in own.items() if v is not None and usual.get(k, v) != v}
    words = [f"{group}.{key}={str(value).replace(' ', '')}" for key, value in changed.items()]
    return [f"{group}={name}", *words]


def _module(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).split(".")[-2]
