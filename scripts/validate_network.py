"""The network model against measured steps: see dgc_repro/bench/validate_network.py."""

from dgc_repro.bench.validate_network import command

if __name__ == "__main__":
    command()
