"""The laws of every compressor, over one table of settings, in the simulated world.

A user's own table is checked by these tests too (docs/adding-a-compressor.md), so all of them are about the
settings of the table. test_laws_beyond_the_table.py has the others.
"""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable

import pytest
import torch
from laws import (
    LAWS,
    WORLDS,
    Seen,
    leaf,
    num_steps,
    play,
    residual,
    same,
    same_bits,
    simulation,
    tensors,
    transcript,
)
from torch import Tensor

from dgc_repro.exchange.saved import load_state_dict, state_dict
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import EPS, Asked, Setting, asks
from dgc_repro.selfcheck.methods import copied


def each_setting_under(law: str) -> Callable[[Callable[..., None]], pytest.MarkDecorator]:
    """All settings that are not excused from the law, by their place in the table. A broken law is one
    line: law, setting, workers, what is wrong. A test that takes ``workers`` runs in worlds of 2, 3 and 5."""
    bound = [(i, str(s)) for i, s in enumerate(SETTINGS) if law not in s.excuses]
    cases = pytest.mark.parametrize("index", [i for i, _ in bound], ids=[name for _, name in bound])
    return lambda test: cases(in_one_line(law, test))


def in_one_line(law: str, test: Callable[..., None]) -> Callable[[int], None]:
    """The test; where it fails, pytest prints the case and the first line of why, and no tensors."""
    in_worlds = "workers" in inspect.signature(test).parameters

    def wrapped(index: int) -> None:
        for workers in WORLDS if in_worlds else (2,):
            why = None
            try:
                test(index, **({"workers": workers} if in_worlds else {}))
            except AssertionError as error:
                why = str(error).partition("\n")[0]
            if why is not None:  # outside `except`: pytest would print the chain
                pytest.fail(f"{law}: {SETTINGS[index]}, {workers} workers: {why}", pytrace=False)

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def steps(seen: list[Seen], workers: int) -> list[list[Seen]]:
    """What was seen of one tensor, a list of workers for each step."""
    assert len(seen) % workers == 0
    return [seen[start : start + workers] for start in range(0, len(seen), workers)]


def check_agreement(outcomes: list[Seen], name: str) -> None:
    assert [one.worker for one in outcomes] == list(range(len(outcomes))), name
    differ = [one.worker for one in outcomes if not same_bits(one.mean, outcomes[0].mean)]
    assert not differ, f"tensor {name}: workers {differ} got another mean than worker 0"


def check_averaging(outcomes: list[Seen], setting: Setting, name: str) -> None:
    """mean = the average of what was sent.

    Each of the N terms is rounded twice (weight times scale, times code) where `dense` rounds
    once, and N - 1 sums round once each: (N + 3) EPS of the mean of |x|. Below float32's normal
    range the product of weight and scale loses up to SMALLEST, times a code of at most 2^15.
    """
    owns = torch.stack([one.own.double() for one in outcomes])
    count = len(outcomes)
    bound = (count + 3) * setting.eps * owns.abs().mean(0) + 2**15 * setting.smallest
    if setting.cancelled and owns.numel():
        bound += setting.cancelled * owns.abs().amax()
    check_bound(outcomes[0].mean.double().view(-1) - owns.mean(0), bound, name)


def check_bound(difference: Tensor, bound: Tensor, name: str) -> None:
    """|difference| <= bound in every entry; both f64."""
    wrong = ~(difference.abs() <= bound)  # of NaN too
    assert not bool(wrong.any()), (
        f"tensor {name}: {int(wrong.sum())} of {wrong.numel()} entries are off, the first by "
        f"{float(difference[wrong][0]):.3g} where {float(bound[wrong][0]):.3g} is allowed"
    )


def check_conservation(one: Seen, name: str) -> None:
    """gradient + old residual = own + new residual, but for two roundings: of the sum that is
    compressed, and of what remains of it. (Additions do not underflow.)"""
    before, after = residual(one.before, one.tensor), residual(one.after, one.tensor)
    summed = one.tensor.double() + before
    bound = EPS * (summed.abs() + before.abs() + after.abs())
    difference = summed - (one.own.double().view(one.tensor.shape) + after)
    check_bound(difference, bound, name)


@each_setting_under("agreement")
def test_agreement_every_worker_gets_the_same_bits(index: int, workers: int) -> None:
    for name, seen in transcript(index, workers)[0].items():
        for outcomes in steps(seen, workers):
            check_agreement(outcomes, name)


@each_setting_under("averaging")
def test_averaging_the_mean_is_the_average_of_what_was_sent(index: int, workers: int) -> None:
    for name, seen in transcript(index, workers)[0].items():
        for outcomes in steps(seen, workers):
            check_averaging(outcomes, SETTINGS[index], name)


@each_setting_under("conservation")
def test_conservation_what_is_not_sent_is_kept(index: int, workers: int) -> None:
    for name, seen in transcript(index, workers)[0].items():
        for one in seen:
            check_conservation(one, name)


@each_setting_under("contraction")
def test_contraction_sending_is_closer_than_silence(index: int) -> None:
    """||x - C(x)|| <= ||x||, entry by entry, but for float32's rounding of the product that
    decodes: 2 EPS |x|, as the scale is rounded too."""
    for name, seen in transcript(index, 2)[0].items():
        for one in seen:
            x, sent = one.tensor.double().view(-1), one.own.double()
            check_bound(x - sent, x.abs() * (1 + 4 * EPS), name)


def filled_up(parts: list[tuple[int, int]]) -> int:
    """Bytes of a flat buffer in which a part begins at a multiple of its element, to a multiple of 8."""
    end = 0
    for count, size in parts:
        end = math.ceil(end / size) * size + count * size
    return math.ceil(end / 8) * 8


def handed_over(asked: list[list[tuple[str, Asked]]]) -> int:
    """Payload bytes of one round in which these workers (asked[worker][tensor]: the leaf of the nest, and
    what it asks) ask at once. What a leaf sends of all its tensors is one payload."""
    total = 0
    for leaf_of, kind in {(name, one.kind) for name, one in asked[0]}:
        own = [
            [one for name, one in worker if (name, one.kind) == (leaf_of, kind)] for worker in asked
        ]
        each = [[part for one in worker for part in one.parts] for worker in own]
        if kind in ("mean", "max"):
            total += sum(count * size for count, size in each[0])
        elif kind.startswith("alltoall"):  # worker 0's, a buffer for each other worker
            for rank in range(1, len(asked)):
                parts = [
                    part
                    for one in own[0]
                    for part, to in zip(one.parts, one.to, strict=True)
                    if to == rank
                ]
                total += filled_up(parts) + (8 * len(parts) if kind == "alltoall_ragged" else 0)
        else:  # everybody fills up to the longest; of ragged ones the sizes travel first
            sizes = 8 * len(each[0]) if kind == "ragged" else 0
            total += sizes + max(filled_up(parts) for parts in each)
    return total


@each_setting_under("bytes")
def test_bytes_the_ledger_counts_what_the_docstring_says(index: int, workers: int) -> None:
    setting = SETTINGS[index]
    seen, ledger = transcript(index, workers)
    chosen = Plan(None, candidates=(1, 2)) == setting.plan
    expected = 0
    for step in range(num_steps(workers)):
        rounds: list[list[list[tuple[str, Asked]]]] = []  # by round, worker, tensor
        misfits: list[tuple[bool, str]] = []  # of empty tensors last
        for name, tensor in tensors(0, step).items():
            for worker, one in enumerate(steps(seen[name], workers)[step]):
                rungs = [1, 2] if chosen else [setting.plan.for_tensor(name)]
                leaves = [leaf(setting.compressor, name, tensor, rung) for rung in rungs]
                asked = [asks(sent, tensor, one.own_floats) for sent in leaves]
                sizes = [a(name, worker, workers) if callable(a) else a for a in asked]
                by_size = {id(size): repr(sent) for size, sent in zip(sizes, leaves, strict=True)}
                # What is gathered at once is the payload itself; elsewhere its bytes are the method's.
                fits = [
                    size
                    for size in sizes
                    if size[0].kind not in ("gather", "ragged")
                    or len(size) > 1
                    or size[0].num_bytes == one.own_bytes
                ]
                if not fits:
                    says = " or ".join(str(size[0].parts) for size in sizes)
                    why = (
                        f"tensor {name}: its payload has the parts {one.own_parts} (elements, bytes of one), "
                        f"{one.own_bytes} bytes, but `asks` says {says}; "
                        "change the formula in `asks`, or what is sent"
                    )
                    misfits.append((tensor.numel() == 0, why))
                for turn, request in enumerate(fits[0] if fits else ()):
                    if len(rounds) <= turn:
                        rounds.append([[] for _ in range(workers)])
                    rounds[turn][worker].append((by_size[id(fits[0])], request))
        assert not misfits, min(misfits)[1]
        expected += sum(handed_over(asked) for asked in rounds) + (24 if chosen else 0)
    counted = ledger.payload_bytes
    kind = "; `asks` needs the kind of the request: ragged for GatherRagged, gather for Gather"
    assert counted == expected, (
        f"the ledger counts {counted} bytes, the formula says {expected}{kind}"
    )


@each_setting_under("undo")
def test_undo_a_step_that_is_undone_leaves_no_trace(index: int) -> None:
    setting = SETTINGS[index]
    workers, like = 2, tensors(0, 0)
    tried, plain = (simulation(setting, workers, like) for _ in range(2))
    for exchange in (tried, plain):
        play(exchange, setting, [tensors(worker, 0) for worker in range(workers)])
    states = [copied(tried.states(worker)) for worker in range(workers)]
    tried.hold()
    tried.run([tensors(worker, 5) for worker in range(workers)], setting.plan).finish()
    tried.put()
    tried.undo()
    assert same([*map(tried.states, range(workers))], states), (
        "a step that was undone changed a state"
    )
    following = [tensors(worker, 1) for worker in range(workers)]
    means = [play(exchange, setting, following) for exchange in (tried, plain)]
    assert same(*means), "the means of the next step differ"
    both = [[*map(exchange.states, range(workers))] for exchange in (tried, plain)]
    assert same(*both), "the states after the next step differ"


@each_setting_under("resume")
def test_resume_saved_and_loaded_equals_uninterrupted(index: int) -> None:
    setting = SETTINGS[index]
    workers, like = 2, tensors(0, 0)
    whole, first, second = (simulation(setting, workers, like) for _ in range(3))

    def gradients(step: int) -> list[dict[str, Tensor]]:
        return [tensors(worker, step) for worker in range(workers)]

    for step in range(2):
        play(whole, setting, gradients(step))
        play(first, setting, gradients(step))
    for worker in range(workers):
        file = io.BytesIO()
        torch.save(state_dict(first, worker), file)
        file.seek(0)
        load_state_dict(second, torch.load(file, weights_only=True), worker)
    for step in range(2, 4):
        means = [play(exchange, setting, gradients(step)) for exchange in (second, whole)]
        assert same(*means), f"the means of step {step} differ from the uninterrupted run's"
    both = [[*map(exchange.states, range(workers))] for exchange in (second, whole)]
    assert same(*both), "the last states differ"


def test_the_excuses_are_few_and_known(capsys: pytest.CaptureFixture[str]) -> None:
    excused = [(law, s.name, why) for s in SETTINGS for law, why in s.excuses.items()]
    counts = {law: sum(one == law for one, _, _ in excused) for law in LAWS}
    with capsys.disabled():
        said = ", ".join(f"{law} {count}" for law, count in counts.items() if count)
        print(f"\n{len(SETTINGS)} settings, {len(excused)} excuses: {said}")
        for law, why in sorted({(law, why) for law, _, why in excused}):
            print(f"  {law}: {why}")
    assert {law for law, _, _ in excused} <= set(LAWS)
    assert counts["agreement"] == counts["bytes"] == counts["undo"] == counts["resume"] == 0
    # What averages nothing says so: majority vote. What compresses the average says where its law is.
    assert all("vote" in why or "test_" in why for law, _, why in excused if law == "averaging")
