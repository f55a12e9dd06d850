"""``compare``: a user's own runs side by side, and judged against one of them.

`tasks.py` sorts runs into lines and judges them with the code of the benchmark's pages (paper/against.py),
`figures.py` draws them, `command.py` prints. Nothing here imports torch.
"""
