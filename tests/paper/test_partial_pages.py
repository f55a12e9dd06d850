"""Pages of unfinished sets of runs: one seed decides nothing, and a missing row is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgc_repro.errors import UserError
from dgc_repro.paper import pool
from dgc_repro.paper.page import markdown
from dgc_repro.paper.publish import artifact_of, artifacts_in, run_ids
from dgc_repro.paper.verdict import MIN_SEEDS

RESULTS = Path(__file__).resolve().parents[2] / "results"
POOLS = sorted(path.parent for path in RESULTS.rglob(pool.RUNS_FILE))
PAGES = [folder for place in POOLS for folder in artifacts_in(place)]


@pytest.mark.slow
@pytest.mark.parametrize("folder", PAGES, ids=lambda folder: "-".join(folder.parts[-3:]))
def test_a_page_is_made_of_one_seed_and_of_one_row(folder: Path) -> None:
    paper, scale, artifact = folder.parts[-3:]
    module, runs = artifact_of(paper, artifact), pool.read(folder.parent, run_ids(folder))
    first = min(run.seed for run in runs)
    page = module.page([run for run in runs if run.seed == first], scale)
    assert "nan" not in markdown(page).partition("## Verdicts")[0].lower().split()
    for verdict in page.verdicts:
        if verdict.word in ("agrees", "differs") and not verdict.modelled:
            assert verdict.n >= MIN_SEEDS, verdict.claim.id  # repeats of a timing
    try:
        alone = module.page([run for run in runs if run.row == runs[0].row], scale)
    except UserError:
        return  # it says which run is missing
    assert markdown(alone)
