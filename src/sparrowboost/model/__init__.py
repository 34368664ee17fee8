"""Trained trees: scores, probabilities, model files, evaluation, export.

`ensemble.Ensemble` is what all modules here share, `model.Model` its public face. Nothing here
knows how trees are grown.
"""
