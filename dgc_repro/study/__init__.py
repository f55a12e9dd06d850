"""What is computed and not trained.

Studies of exchanges and networks are frozen dataclasses with ``run``, in numpy. If a study looks at a model
or at gradients, ``takes`` names which of the types in ``given.py`` it is handed (launch/study.py makes them).
``payloads.py`` counts the bytes of whole models, ``compressing.py`` times methods on a gradient, and
``generalization.py`` measures a trained network.
"""
