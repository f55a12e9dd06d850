"""Speed tables: see dgc_repro/bench/speed.py."""

from dgc_repro.bench.speed import command

if __name__ == "__main__":
    command()
