"""What is known of all rows' weights before a draw, and how large a draw is worth its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparrowboost.kernels.draws import weigh_draw
from sparrowboost.sampling.number_sample import DrawScale, NumberSample
from sparrowboost.sampling.sample import Sample

ROWS_PER_EFF = 2.0  # maximum rows of a draw for each of its n_eff: more only cost scanning
PART_ROWS = 1 << 16  # summed at a time
STEPS = 60  # of the search for the scale


@dataclass(frozen=True)
class WeightEstimate:
    """Weights of all rows as far as known: some weights, and the number of rows that have each."""

    weight: npt.NDArray[np.float32]
    rows: npt.NDArray[np.float32]
    label: npt.NDArray[np.uint8]  # or band
    draw_scale: DrawScale | None = None  # of rows with numbers to predict

    @classmethod
    def of(cls, sample: Sample) -> WeightEstimate:
        if not isinstance(sample, NumberSample):
            return cls(sample.w / sample.copies, sample.copies, sample.label)
        # By the scale of the next draw: gradients have become smaller since the last one.
        scale, weight = sample.next_scale(), np.empty(sample.n, np.float32)
        for block in range(sample.n_blocks):
            rows = sample.rows(block)
            weight[rows] = sample.weights_at(scale, rows) / sample.copies[rows]
        return cls(weight, sample.copies, sample.label, scale)

    def times(self, factor: float) -> WeightEstimate:
        """The same for `factor` times the rows."""
        return self if factor == 1 else replace(self, rows=self.rows * factor)

    def spread(self, label: int) -> float:
        """Root mean square of the weights of a label's rows."""
        squares = rows = 0.0
        for part in self._parts():
            of_label = part.rows * (part.label == label)
            squares += float((of_label * np.square(part.weight)).sum(dtype=np.float64))
            rows += float(of_label.sum(dtype=np.float64))
        return (squares / max(rows, 1.0)) ** 0.5

    def _parts(self) -> Iterator[WeightEstimate]:
        """Some rows at a time: intermediate results of all would take more memory than they do."""
        for start in range(0, len(self.weight), PART_ROWS):
            part = slice(start, start + PART_ROWS)
            yield WeightEstimate(self.weight[part], self.rows[part], self.label[part])

    def rows_at(self, scale: float) -> float:
        """Rows that a draw at this scale is expected to keep."""
        return float(weigh_draw(self.weight, self.rows, scale)[0])

    def total(self) -> float:
        """The weight of all rows."""
        return sum(float((part.rows * part.weight).sum(dtype=np.float64)) for part in self._parts())

    def scale_for(self, most_rows: int) -> float:
        """The scale of the largest draw that is worth its rows and has at most `most_rows`."""
        low = 1e-12 * float(self.weight.max())
        total = high = self.total()  # one row
        for _ in range(STEPS):
            middle = (low * high) ** 0.5
            rows, squares = weigh_draw(self.weight, self.rows, middle)
            if rows <= most_rows and rows * squares <= ROWS_PER_EFF * total**2:
                high = middle
            else:
                low = middle
        return high
