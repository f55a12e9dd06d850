"""What people call the benchmark's settings: ``redsync_0.01_True`` is "RedSync 1 %, one mean".

A setting's own name (``experiment.method``) has its method, its number, and further words.
"""

from __future__ import annotations

import math

NAMES = {
    "dense": "no compression",
    "bf16": "half precision",
    "fp16": "half precision, fp16",
    "uniform": "{} bits",
    "qsgd": "QSGD, {} levels",
    "natural": "natural compression",
    "terngrad": "TernGrad",
    "loco": "LoCo, {} bits",
    "blockfloat": "{}",
    "eden": "EDEN, {} bits",
    "drive": "DRIVE",
    "topk": "top-k {%}",
    "magnitude": "top-k of the model {%}",
    "randomk": "random-k {%}",
    "threshold": "threshold {%}",
    "redsync": "RedSync {%}",
    "sidco": "SIDCo {%}",
    "sparseloco": "SparseLoCo {%}",
    "dgc_sampled": "sampled top-k {%}",
    "dgc": "DGC {%}",
    "powersgd": "PowerSGD, rank {}",
    "ef_signsgd": "EF-signSGD",
    "onebit": "1 bit",
    "signsgd": "signSGD",
    "onebit_adam": "1-bit Adam",
    "adam": "Adam",
    "demo": "DeMo, {} a block",
    "diloco": "DiLoCo, {} steps",
    "streaming": "Streaming DiLoCo, {} steps",
    "muloco": "MuLoCo, {} steps",
    "muon": "Muon",
    "muon_uniform": "Muon, {} bits",
    "dion": "Dion, rank {%}",
    "accordion": "Accordion",
    "scadles": "ScaDLES",
    "gravac": "GraVAC",
    "adaqs": "AdaQS",
    "stepwise": "stepwise bits",
}
"""By method; ``{}``: its number, ``{%}``: its number in percent."""
WORDS = {
    "plain": "no error feedback",
    "sharded": "in shards",
    "unmasked": "unmasked",
    "True": "one mean",
    "False": "",
}
OUTER = "outer"


def is_of(setting: str, method: str) -> bool:
    """Whether a setting is of a method: ``topk_0.01`` is of ``topk``."""
    return setting == method or setting.startswith(f"{method}_")


def name_of(setting: str) -> str:
    """Return what people call a setting; of a method that is not known, its own name."""
    methods = [method for method in NAMES if is_of(setting, method)]
    if not methods:
        return setting
    method = max(methods, key=len)
    name, parts = NAMES[method], setting.removeprefix(method).split("_")[1:]
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
