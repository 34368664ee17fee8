"""Trees, and all that is done with them: scores, probabilities, files, measures, export.

Knows nothing of how they were grown.
"""
