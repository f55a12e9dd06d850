"""The table of docs/combining.md: see dgc_repro/bench/combine_table.py."""

from dgc_repro.bench.combine_table import command

if __name__ == "__main__":
    command()
