"""Save a wandb workspace for a project: see dgc_repro/sink/wandb_report.py."""

from dgc_repro.bench.command_line import run
from dgc_repro.sink.wandb_report import main

if __name__ == "__main__":
    run("wandb_report", main, "nothing was saved")
