"""Any source of rows becomes Arrow batches with labels and weights.

`formats.open_source` picks a reader by suffix or type; `table.open_table` finds which columns are
label, weight and features. Knows nothing of bins or models.
"""
