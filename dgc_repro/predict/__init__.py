"""What a step, a run or a paper will take, before anything is trained.

The commands `predict`, `calibrate` and `recommend` and ``reproduce plan=true`` are here. Modelled numbers are
labelled as modelled, and each says from which counts or measurements it comes.
"""
