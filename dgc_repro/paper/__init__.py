"""Papers: one folder a paper, one file a table or figure (docs/adding-a-paper.md).

`records` reads finished runs, `frame` turns them into one long table of numbers, `claims` writes down what
a paper says, `verdict` compares the two, `page` and `plot` write the result, `publish` puts it all into a
folder, `pool` keeps the runs. Nothing here imports torch.
"""
