"""GraVAC that decides a step later exchanges each bucket while backward goes on, and changes no bit."""

from __future__ import annotations

from jobs import Script, refusal, train
from laws import same
from processes import World

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.topk import TopK
from dgc_repro.policy.gravac import GraVAC

LADDER = ErrorFeedback(Ladder((Dense(), TopK(factor=2), TopK(factor=4), TopK(factor=8))))


def script(junction: str, *, eps: float = 0.6, steps: int = 8, decide: str = "last") -> Script:
    policy = GraVAC(
        theta_min=2, theta_max=8, eps=eps, smoothing=1.0, window=2, omega=0.0, decide=decide
    )
    attached = {"policy": policy, "check": True}
    return Script(LADDER, junction, steps=steps, attach_settings=attached)


def test_both_junctions_decide_and_train_alike(two_workers: World) -> None:
    told = {kind: two_workers(train, script(kind)) for kind in ("after_backward", "per_bucket")}
    assert len(told["per_bucket"][0]["buckets"]) > 8, "several buckets a step"
    for bucket, after in zip(*reversed(told.values()), strict=True):
        assert same(bucket["gradients"], after["gradients"])
        assert same(bucket["parameters"], after["parameters"])
        for key in ("last", "next", "gains", "theta_min", "candidate"):
            assert bucket["state"]["policy"][key] == after["state"]["policy"][key], key
    first, second = told["per_bucket"]
    assert same(first["parameters"], second["parameters"])
    assert first["state"]["policy"] == second["state"]["policy"]


def test_the_rung_that_was_sent_really_changes(two_workers: World) -> None:
    """Of 4 steps with an eps that all reach, the first is whole and the others are compressed."""
    sent = [
        two_workers(train, script("per_bucket", eps=eps, steps=4))[0]["state"]["ledger"]
        for eps in (1e-6, 1.0)
    ]
    some, all_whole = (ledger["payload_bytes"] for ledger in sent)
    assert some < 0.8 * all_whole


def test_a_dense_step_in_buckets_clears_the_residual(two_workers: World) -> None:
    for told in two_workers(train, script("per_bucket", eps=1.0, steps=3)):
        assert told["state"]["policy"]["last"]["branch"] == "dense"
        for state in told["state"]["exchange"]["tensors"].values():
            assert not bool(state["residual"].any())


def test_its_state_is_saved_and_goes_on(two_workers: World) -> None:
    whole = two_workers(train, script("per_bucket"))
    resumed = script("per_bucket")
    resumed.resume_at = 3
    for one, other in zip(two_workers(train, resumed), whole, strict=True):
        assert same(one["gradients"], other["gradients"])
        assert one["state"]["policy"]["last"] == other["state"]["policy"]["last"]


def test_deciding_from_the_same_step_is_refused_with_the_way_out(two_workers: World) -> None:
    for said in two_workers(refusal, script("per_bucket", decide="now")):
        assert "use junction=after_backward or decide=last" in said
