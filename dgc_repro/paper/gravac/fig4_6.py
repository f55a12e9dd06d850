"""GraVAC's figures 4 to 6: norms before and after compression, quality and gain at fixed 10x and 1000x."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import Shown, drawing
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Quantity, seeds
from dgc_repro.paper.gravac import DENSE, LOOKS, LSTM, MODELS, RESNET101, VGG16, row_id
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.gravac.training import GAIN, QUALITY
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

FIGURE = {RESNET101: 4, VGG16: 5, LSTM: 6}
WEAK, STRONG = "dgc10_gains", "dgc1000_gains"
NEAR_ONE = 0.1
"""How near a gain near 1.0 is. Ours."""
LSTM_GAIN, HALF_DECIMAL = (0.8, 0.9), 0.05
LOW_STEPS, LOW_GAIN = 1_000, 0.5
"""The paper's first steps; ours: at a low gain more than half of the gradient's energy stays behind."""
EARLY = {kind: f"{gain}, first {LOW_STEPS:,} steps" for kind, gain in GAIN.items()}
GROWTH = {kind: f"growth of the {gain}" for kind, gain in GAIN.items()}
TABLE_2_LOSS = 80.4 - 78.6
"""Points that ResNet101 loses between DGC 10x and DGC 1000x in Table II."""
NORMS = {"norm_before": "norm before compression", "norm_after": "norm after compression"}
NOTE = (
    "BC and AC are the norms of the gradient before and after compression. Of the gains, solid lines are the "
    "energy gain as printed and dotted lines the norm gain of the authors' code."
)
WORDS = Template.read(__file__)


def _mean_of(read: Callable[[Run, str], g.Series], name: str) -> Quantity:
    return Quantity("", lambda run: g.mean(read(run, name)))


def _early(run: Run, kind: str) -> float:
    """The mean gain of the first steps."""
    values = g.gains(run, kind)
    return g.mean(values[g.column(run, "step") <= g.at(run, LOW_STEPS)] if values.size else values)


def _growth(run: Run, kind: str) -> float:
    """The mean gain of the later steps less that of the first ones."""
    values = g.gains(run, kind)
    later = values[g.column(run, "step") > g.at(run, LOW_STEPS)] if values.size else values
    return g.mean(later) - _early(run, kind)


TABLE = {
    **{quantity: _mean_of(g.gains, kind) for kind, quantity in GAIN.items()},
    **{quantity: _mean_of(g.column, name) for name, quantity in NORMS.items()},
}
QUANTITIES = TABLE | {
    name: Quantity("", partial(read, kind=kind))
    for names, read in ((EARLY, _early), (GROWTH, _growth))
    for kind, name in names.items()
}


def claims(one: g.Course) -> Iterator[Claim]:
    """The claims on a model: on its gains, of both kinds, and on its quality."""
    model, figure = one.model, f"figure {FIGURE[one.model]}"
    dense, weak, strong = (row_id(model, method) for method in (DENSE, WEAK, STRONG))
    say = partial(
        WORDS.claim,
        model=MODELS[model],
        where=figure,
        near_one=NEAR_ONE,
        low=LOW_GAIN,
        loss=TABLE_2_LOSS,
    )
    endings = (("", ""), (".norm", " (norm gain)"))
    for (kind, gain), (end, which) in zip(GAIN.items(), endings, strict=True):
        own = partial(say, gain=which)
        near_one = near(Check(gain, weak), 1.0, NEAR_ONE)
        yield own("10x", near_one, id=f"{model}.10x{end}", ours=True)
        yield own("order", Check(gain, weak, strong), id=f"{model}.order{end}")
        if model == RESNET101:
            low = Check(EARLY[kind], strong, below=LOW_GAIN, above=-math.inf)
            yield own("low", low, id=f"{model}.low{end}", ours=True)
            yield own("grows", Check(GROWTH[kind], strong), id=f"{model}.grows{end}")
        if model == LSTM:
            least, most = LSTM_GAIN
            within = Check(gain, strong, None, least - HALF_DECIMAL, most + HALF_DECIMAL)
            yield own("1000x", within, id=f"{model}.1000x{end}")
    if model == RESNET101:
        lower = (Check(QUALITY, row, strong, above=TABLE_2_LOSS / 2) for row in (dense, weak))
        yield say("considerable", *lower, of=model, ours=True)
    elif model == VGG16:
        close = Check(QUALITY, dense, strong, above=-TABLE_2_LOSS, below=TABLE_2_LOSS)
        yield say("close", close, of=model, ours=True)
    else:
        yield say("ranking", g.better(model, DENSE, WEAK), g.better(model, WEAK, STRONG), of=model)


def _panels(shown: Shown) -> list[panels.Panel]:
    """Norms at 10x and at 1000x; quality; gains."""
    (one,) = g.courses(shown.runs, shown.scale)

    def by_step(
        method: str, of: Callable[[Run], g.Series], label: str = "", **style: str
    ) -> panels.Draw:
        seeds = [(g.column(run, "step"), of(run)) for run in one.of(method)]
        return panels.lines(seeds, label, linewidth=1.0, **{"color": LOOKS[method].colour, **style})

    norms, gains = [], []
    for method in (WEAK, STRONG):
        before, after = (partial(g.column, name=name) for name in NORMS)
        both = (
            by_step(method, before, "before (BC)", color=plot.GREEN),
            by_step(method, after, f"after (AC), {LOOKS[method].label}"),
        )
        title = f"norm: {LOOKS[method].label}"
        norms.append(panels.panel(title, *both, x="iteration", y="norm", log="y"))
        for kind, dashes in zip(GAIN, ("-", ":"), strict=True):
            gains.append(by_step(method, partial(g.gains, gain=kind), linestyle=dashes))
    y = "gain: solid energy, dotted norm"
    gain = panels.panel("gain", *gains, x="iteration", y=y, ylim=(0, None))
    return [*norms, one.curves(shown.looks), gain]


def _artifact(model: str, number: int) -> SimpleNamespace:
    """The artifact of one model's figure."""
    title = f"GraVAC, figure {number}: training with DGC at 10x and at 1000x"
    page = g.page(
        __file__,
        (DENSE, WEAK, STRONG),
        claims,
        numbers=lambda one: g.measure(one, QUANTITIES),
        quantities=QUANTITIES,
        models=(model,),
        tables={
            "Quality, gain and norm": (
                *(seeds(g.FINAL[model]), g.FINAL_COLUMN[g.FINAL[model]]),
                *TABLE,
            )
        },
        said={"number": number, "model": MODELS[model]},
        figures={
            f"fig{number}": drawing(title, _panels, NOTE, columns=2, size=(4.8, 3.2), legend=3)
        },
    )
    return SimpleNamespace(page=page, POOL="training")


ARTIFACTS = {f"fig{number}": _artifact(model, number) for model, number in FIGURE.items()}
