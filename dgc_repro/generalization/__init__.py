"""Measures of a trained network that are meant to predict its generalization gap.

Source of the list: Jiang, Neyshabur, Mobahi, Krishnan, Bengio, "Fantastic generalization measures and where
to find them", 2019, arXiv:1912.02178 (appendix C there). Factors that all networks of a comparison
share, such as sqrt(1 / m), are left out: they do not change an order.

Letters: W_i = the weights of layer i (a matrix), W_i^0 = the same at initialization, w = all parameters as
one vector, omega = its length, m = training images, d = layers with weights, gamma = margin.
"""
