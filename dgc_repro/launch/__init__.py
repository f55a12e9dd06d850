"""From a command line to finished runs, and the only package that imports Hydra.

`main.py` composes, `rules.py` refuses, `build.py` makes objects, `run.py` makes one run. `ranks.py`,
`slurm.py` and `torchrun.py` start its processes; `sweep.py` and `reproduce.py` make many runs.
"""
