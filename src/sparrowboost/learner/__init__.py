"""Training: evidence from a sample, a proved split, a tree, and so on.

Begin with `boost.boost`, the loop. `stopping` has the stopping rules, `planning` divides the memory
limit.
"""
