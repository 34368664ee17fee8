"""Frames and data sets of other libraries that compute or read their rows on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparrowboost.readers.base import ConcatenatedSource, Source, read_errors
from sparrowboost.readers.inmemory import polars_schema
from sparrowboost.readers.ipc import open_arrow, spill
from sparrowboost.readers.optional import first_line, reserve
from sparrowboost.runtime.errors import DataError
from sparrowboost.runtime.memory import drop_pages, mappings_of

if TYPE_CHECKING:
    from sparrowboost.readers.formats import OpenOptions

BATCH_ROWS = 16_384
# Measured: what polars holds while it scans Parquet and filters. Sorting and joining take more.
POLARS_BYTES = 300_000_000
STATE, SPLITS = "state.json", "dataset_dict.json"  # of a folder that Hugging Face's library saved


def open_lazy_frame(frame: Any, options: OpenOptions) -> Source:
    """A polars LazyFrame: computed by its streaming engine, a batch at a time."""
    import polars as pl

    name = "LazyFrame"
    if not hasattr(frame, "collect_batches"):
        raise DataError(
            "a polars LazyFrame is read by polars 1.34 or newer; pip install --upgrade polars, or "
            "write it with data.sink_parquet(path) and pass the path."
        )
    try:
        schema = polars_schema(pl.DataFrame(schema=frame.collect_schema()), name)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{name}: {first_line(error)}.") from None
    reserve(options.limit, "polars", POLARS_BYTES)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for part in frame.collect_batches(
                chunk_size=BATCH_ROWS, maintain_order=True, lazy=True, engine="streaming"
            ):
                yield from part.to_arrow().cast(schema).to_batches()
        except pl.exceptions.PolarsError as error:
            raise pa.ArrowInvalid(first_line(error)) from None

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    return spill(reader, name, options.scratch, options.check)


def open_hugging_face(data: Any, options: OpenOptions) -> Source:
    """A Dataset or IterableDataset of Hugging Face's library `datasets`."""
    name = type(data).__name__
    if isinstance(data, dict):
        splits = ", ".join(map(repr, data))
        raise DataError(
            f"{name}: has several splits ({splits}); pass one, data[{next(iter(data))!r}]."
        )
    if data.features is None:
        raise DataError(
            f"{name}: its columns are not known before it is read; set them with "
            "data.cast(features)."
        )
    schema = data.features.arrow_schema.remove_metadata()

    # Its files are mapped into memory as long as the data set lives.
    files = {file["filename"] for file in getattr(data, "cache_files", ())}
    areas = [area for file in files for area in mappings_of(file)]

    def batches() -> Iterator[pa.RecordBatch]:
        for part in data.with_format("arrow").iter(BATCH_ROWS):
            yield from part.cast(schema).to_batches()
            drop_pages(areas)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    return spill(reader, name, options.scratch, options.check)


def is_saved(folder: Path) -> bool:
    """Whether Hugging Face's library saved a data set, or several, in this folder."""
    return (folder / SPLITS).is_file() or (
        (folder / STATE).is_file() and (folder / "dataset_info.json").is_file()
    )


def open_saved(folder: Path, options: OpenOptions) -> Source:
    """A folder that Hugging Face's library saved a data set in; read without that library."""
    try:
        with read_errors(str(folder)):
            if (folder / SPLITS).is_file():
                splits = json.loads((folder / SPLITS).read_bytes())["splits"]
                raise DataError(
                    f"{folder}: has several splits ({', '.join(splits)}); pass the folder of one, "
                    f"{folder / splits[0]}."
                )
            state = json.loads((folder / STATE).read_bytes())
            files = [folder / file["filename"] for file in state["_data_files"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{folder}: {STATE} is not that of a saved data set ({first_line(error)})."
        ) from None
    parts = [open_arrow(file, str(file), options.scratch, options.check) for file in files]
    if not parts:
        raise DataError(f"{folder}: has no rows.")
    return parts[0] if len(parts) == 1 else ConcatenatedSource(parts)
