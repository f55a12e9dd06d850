"""The table of docs/methods.md: see dgc_repro/bench/aggregation_table.py."""

from dgc_repro.bench.aggregation_table import command

if __name__ == "__main__":
    command()
