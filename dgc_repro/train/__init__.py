"""The trainer: one step, the loop around it, tasks, evaluation and checkpoints.

`step.py` is a step that can be read aloud, `loop.py` goes around it, and `run.py` holds what one run owns.
Nothing here reads a config or starts a process; launch/ does.
"""
