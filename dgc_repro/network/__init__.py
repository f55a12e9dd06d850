"""What a network costs, and networks to measure on.

`profile.py` and `cost.py` are the alpha-beta model, `fit.py` gets its constants from measurements. `lab.py`
shapes links between network namespaces of this machine, `counters.py` reads the bytes that they carried.
"""
