"""A run is not continued by workers that are spread over nodes in another way."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import PLAIN, UNIFORM4_EF, built, play

from dgc_repro.errors import UserError
from dgc_repro.train import checkpoint


def test_a_run_of_other_nodes_is_not_continued(tmp_path: Path) -> None:
    four = ("launch.workers=4", "train.batch_size=8")
    play(built(*PLAIN, *UNIFORM4_EF, *four), until=2, folder=tmp_path)
    other = built(*PLAIN, *UNIFORM4_EF, *four, "launch.workers_per_node=2")
    with pytest.raises(UserError, match="launch.workers_per_node: .* saved with 1 workers a node"):
        checkpoint.load(other, tmp_path, "a config")
