"""Training steps replayed on shaped links: see dgc_repro/bench/network.py."""

from dgc_repro.bench.network import command

if __name__ == "__main__":
    command()
