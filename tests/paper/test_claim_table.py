"""The table of all claims says what the pages say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from published_results import RESULTS

import dgc_repro
from dgc_repro.errors import UserError
from dgc_repro.paper import index
from dgc_repro.paper.claims import EXPECTED
from dgc_repro.paper.verdict import WORDS


def test_every_published_claim_is_there_with_its_verdict() -> None:
    found = dgc_repro.load_claims()
    wanted = {
        (entry.paper, entry.scale, entry.artifact, v["claim"]): (v["verdict"], len(v["effects"]))
        for entry in index.entries(RESULTS)
        for v in entry.record["verdicts"]
    }
    by_claim = found.groupby(["paper", "scale", "artifact", "claim"])
    told = {key: (of.verdict.unique().tolist(), len(of)) for key, of in by_claim}
    assert told == {key: ([word], max(1, lines)) for key, (word, lines) in wanted.items()}
    measured = found[found.measured.notna() & found.low.notna()]
    assert ((measured.low <= measured.measured) & (measured.measured <= measured.high)).all()
    pd.testing.assert_frame_equal(pd.read_parquet(RESULTS / "claims.parquet"), found)
    lines = (RESULTS / "claims.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == found.text.tolist()


def test_a_printed_number_stands_beside_the_measured_one() -> None:
    found = dgc_repro.load_claims()
    (one,) = found[(found.artifact == "fig4") & (found.claim == "resnet101.10x")].itertuples()
    page = (RESULTS / "gravac" / "small" / "fig4" / "table.md").read_text(encoding="utf-8")
    assert f"{one.quantity}, DGC 10x: {one.measured:.4g} | 0.9 to 1.1 (printed: 1" in page
    assert (one.printed, one.above, one.below, one.status) == (1.0, 0.9, 1.1, "inconclusive")


def test_a_range_recorded_as_printed_is_a_direction_or_a_printed_number() -> None:
    """A tolerance of ours that is recorded as printed would pass for the paper's own."""
    found = dgc_repro.load_claims()
    assert set(found[found["where"] == EXPECTED].margin) == {"ours"}
    found = found[(found.margin == "printed") & found.measured.notna()]
    none = (found.kind == "ratio").astype(float)  # no effect
    ends = found.above.fillna(-math.inf), found.below.fillna(math.inf)
    is_order = ((ends[0] == none) & np.isinf(ends[1])) | ((ends[1] == none) & np.isinf(ends[0]))
    is_digit = (ends[0] < found.printed) & (found.printed < ends[1]) & (ends[1] - ends[0] <= 1.001)
    other = found[~(is_order | is_digit)].claim.str.removesuffix(".norm").str.rpartition(".")[2]
    # More than half, 0.8 to 0.9, and 270 to 600: printed as words or as a range.
    assert set(other) == {"mostly", "tight", "1000x", "range"}


@pytest.mark.parametrize(
    ("verdict", "scale", "status"),
    [
        ("agrees", "paper", "verified"),
        ("differs (given)", "paper", "given"),
        ("agrees (given)", "small", "given"),
        ("differs", "low", "toy"),
        ("differs", "paper", "falsified"),
        ("indicative (-)", "paper", "inconclusive"),
        ("by construction", "paper", "untested"),
    ],
)
def test_a_status_says_the_scale_of_a_decided_claim(verdict: str, scale: str, status: str) -> None:
    assert verdict in WORDS
    assert index.status(verdict, scale) == status


def test_a_folder_without_results_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no published results; give the folder results of a"):
        dgc_repro.load_claims(tmp_path)
