"""Speed tables: see dgc_repro/bench/command_line.py."""

from dgc_repro.bench.command_line import main, run

if __name__ == "__main__":
    run("bench", main, "no further table was written")
