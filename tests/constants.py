"""Constants that tests set to other values, so that a small table is treated as a large one.

Each has a name of its own here. Where it is, in one or several modules, nobody else needs to know.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PLACES = {
    "csv_columns": ("readers.csv.MAX_COLUMNS",),
    "save_seconds": ("learner.checkpoint.SAVE_SECONDS",),
    "start_values": ("learner.grower.START_VALUES",),
    "first_rows": ("learner.planning.FIRST_ROWS", "learner.planning.FIRST_TARGETS"),
    "min_rows": ("learner.planning.MIN_ROWS",),
    "whole_values": ("learner.planning.WHOLE_VALUES",),
    "part_values": ("learner.scanner.PART_VALUES",),
    "soundness_part_rows": ("learner.soundness.PART_ROWS",),
    "first_of_label": ("learner.starting.FIRST_OF_LABEL",),
    "large_sample": ("learner.starting.LARGE_SAMPLE",),
    "validation_block_rows": ("learner.validation.BLOCK_ROWS", "model.predict.BLOCK_ROWS"),
    "validation_part_rows": ("learner.validation.PART_ROWS",),
    "model_items": ("model.document.MAX_ITEMS",),
    "model_item_bytes": ("model.document.ITEM_BYTES",),
    "parsed_at_once": ("model.document.WHOLE_BYTES",),
    "model_file_bytes": ("model.file.MAX_BYTES",),
    "kept_bytes": ("model.predict.KEPT_BYTES",),
    "prediction_block_rows": ("model.predict.BLOCK_ROWS",),
    "predictions_group_rows": ("model.predictions.GROUP_ROWS",),
    "csv_block_bytes": ("readers.csv.BLOCK_BYTES",),
    "csv_max_block_bytes": ("readers.csv.MAX_BLOCK_BYTES",),
    "libsvm_max_line_bytes": ("readers.libsvm.MAX_LINE_BYTES",),
    "piece_bytes": ("runtime.budget.PIECE_BYTES",),
    "compile_seconds": ("runtime.progress.COMPILE_SECONDS",),
    "ipc_near_bytes": ("readers.ipc_rows.NEAR_BYTES",),
    "npy_gap_bytes": ("readers.npy.GAP_BYTES",),
    "npy_piece_bytes": ("readers.npy.PIECE_BYTES",),
    "npy_piece_rows": ("readers.npy.PIECE_ROWS",),
    "range_bytes": (
        "readers.ranges.RANGE_BYTES",
        "readers.parquet.RANGE_BYTES",
        "readers.text.RANGE_BYTES",
    ),
    "range_part_bytes": (
        "readers.ranges.PART_BYTES",
        "readers.parquet.PART_BYTES",
        "readers.text.PART_BYTES",
    ),
    "range_gap_bytes": ("readers.ranges.GAP_BYTES",),
    "range_block_bytes": ("readers.ranges.BLOCK_BYTES",),
    "range_tail_bytes": ("readers.ranges.TAIL_BYTES",),
    "remote_attempts": ("runtime.remote.ATTEMPTS",),
    "remote_pause": ("runtime.remote.FIRST_PAUSE",),
    "min_paged": ("readers.parquet.MIN_PAGED",),
    "text_release_seconds": ("readers.text.RELEASE_SECONDS",),
    "sample_block_rows": (
        "learner.grower.BLOCK_ROWS",
        "learner.scanner.BLOCK_ROWS",
        "sampling.sample.BLOCK_ROWS",
    ),
    "max_factor": ("sampling.schedule.MAX_FACTOR",),
    "rows_per_rule": ("sampling.schedule.ROWS_PER_RULE", "sampling.schedule.TARGETS_PER_RULE"),
    "stage_worth": ("sampling.schedule.WORTH",),
    "batch_bytes": ("sampling.strata.BATCH_BYTES",),
    "chunk_rows": ("sampling.strata.CHUNK_ROWS",),
    "label_sample_rows": ("store.label_sample.SAMPLE_ROWS",),
    "wide": ("store.column_pass.WIDE",),
    "array_bytes": ("store.column_pass.ARRAY_BYTES",),
    "reader_bytes": ("store.column_pass.READER_BYTES",),
    "scratch_bytes": ("store.column_pass.SCRATCH_BYTES",),
    "max_block_rows": ("store.reading.MAX_BLOCK_ROWS",),
    "min_partitions": ("store.ingest.MIN_PARTITIONS",),
    "sparse_columns": (
        "store.sparse.MIN_COLUMNS",
        "model.ensemble.MIN_COLUMNS",
        "learner.validation.MIN_COLUMNS",
    ),
    "min_entries": ("store.sparse.MIN_ENTRIES",),
    "tail_share": ("store.sparse.TAIL_SHARE",),
    "sparse_evidence_share": ("store.sparse.EVIDENCE_SHARE",),
    "min_staged_rows": ("store.ingest.MIN_STAGED_ROWS",),
    "n_stages": ("store.ingest.N_STAGES",),
    "kept_categories": ("store.fold_statistics.MIN_KEPT", "store.plan.MIN_KEPT"),
    "least_categories": ("store.statistics_pass.MIN_CATEGORIES",),
    "most_statistics": ("store.statistics_pass.MAX_CATEGORIES",),
    "bucket_bytes": ("store.shuffle.BUCKET_BYTES",),
    "extent_bytes": ("store.shuffle.EXTENT_BYTES",),
    "min_memory": ("store.shuffle.MIN_MEMORY",),
    "min_segment_bytes": ("store.shuffle.MIN_SEGMENT_BYTES",),
    "segment_bytes": ("store.shuffle.SEGMENT_BYTES",),
}


def set_constants(patch: pytest.MonkeyPatch | None, **values: float) -> None:
    """Set constants by their names in `PLACES`, until the patch is undone.

    None is for scripts, which set them for good, and may not have the memory for pytest.
    """
    for name, value in values.items():
        for place in PLACES[name]:
            module, constant = f"sparrowboost.{place}".rsplit(".", 1)
            set_it = patch.setattr if patch is not None else setattr
            set_it(import_module(module), constant, value)
