"""What is computed and not trained: small studies of exchanges and networks, in numpy.

A study is a frozen dataclass with ``run``. Where it looks at a model or at gradients, ``takes`` names
which of the types in ``study/given.py`` it is handed (launch/study.py makes them).
"""
