"""Any source of rows becomes Arrow batches with labels and weights.

Other packages use:

    formats    open_source: a path, array, frame or stream as a `Source`; check_format, files_of
    table      open_table: a source and its label, weight and feature columns
    options    ReadOptions: how files are to be read
    inputs     what kind of X an estimator was given
    labels     labels as 0 and 1
    columns    kinds of columns, through `formats`
    arrays     Arrow arrays as numpy arrays and back
    base       what a `Source` is, and sources made of others
    query      sql: a query as data
    notation   whether texts look like numbers or dates, and how to read them as such

The readers of single formats (csv, delta, iceberg, ipc, jsonlines, lazy, libsvm, npy, orc, parquet)
are for `formats` alone. Nothing here knows of bins or models.
"""
