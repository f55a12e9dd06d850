"""A wandb workspace (a saved view) for runs that `dgc_repro.sink.wandb` has mirrored; seeds are grouped.

It shows quality against steps, bytes and time, what policies chose, and bytes by kind.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dgc_repro.errors import UserError
from dgc_repro.sink.wandb import key_problem, require_installed, silent_wandb

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

QUALITIES = {"test/accuracy_percent": "Test accuracy (%)", "test/perplexity": "Test perplexity"}
AXES = {
    "Step": "step",
    "comm/wire_bytes": "wire bytes of one worker (gradients)",
    "time/modelled_seconds": "modelled seconds",
    "time/train_seconds": "measured training seconds",
}
CHOICES = {
    "policy/rung": "rung (0: no compression)",
    "decision/factor": "compression factor sent",
    "decision/gain": "gain",
}
KINDS = ("wire", "signal", "buffer", "evaluation", "check")
"""Columns ``comm/<kind>_bytes`` of a record: gradients, gradients inside nodes, and what is no gradient."""


def workspace(entity: str, project: str) -> Workspace:
    """The workspace, not yet saved; needs no network. Raises UserError if wandb-workspaces is missing."""
    require_installed("wandb_workspaces", "reports")
    silent_wandb()
    import wandb_workspaces.reports.v2.interface as wr
    import wandb_workspaces.workspaces as ws

    panels: dict[str, list[Any]] = {
        name: [
            wr.LinePlot(title=f"{name} against {label}", x=axis, y=[metric], title_x=label)
            for axis, label in AXES.items()
        ]
        for metric, name in QUALITIES.items()
    }
    panels["Policy"] = [
        *(wr.LinePlot(title=label, x="Step", y=[key]) for key, label in CHOICES.items()),
        wr.WeavePanelSummaryTable(table_name="policy/trace"),
    ]
    kinds: list[Any] = [f"comm/{kind}_bytes" for kind in KINDS]
    volume: list[Any] = ["comm/payload_bytes", "comm/total_wire_bytes"]
    panels["Bytes"] = [
        wr.BarPlot(title="Wire bytes of one worker by kind", metrics=kinds),
        wr.BarPlot(title="Payload, and all wire bytes", metrics=volume),
    ]
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Compression: quality, bytes, time",
        sections=[
            ws.Section(name=name, panels=drawn, is_open=name != "Test perplexity")
            for name, drawn in panels.items()
        ],
        runset_settings=ws.RunsetSettings(groupby=[ws.Metric("Group")]),
    )


def main() -> None:
    """The command of scripts/wandb_report.py: save the workspace. Raises UserError without a key."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", default="dgc_repro", help="sink.project of the runs")
    parser.add_argument("--entity", help="sink.entity of the runs; default: the key's own")
    given = parser.parse_args()
    require_installed("wandb_workspaces", "reports")
    require_installed("wandb", "wandb")
    if reason := key_problem():
        raise UserError(
            f"a workspace is saved online and needs a wandb key, {reason}; run `wandb login`"
        )
    wandb = silent_wandb()
    try:
        made: Any = workspace(given.entity or wandb.Api().default_entity, given.project)
        print(f"saved: {made.save().url}")
    except wandb.errors.Error as error:
        raise UserError(f"wandb: {' '.join(str(error).split())}") from error
