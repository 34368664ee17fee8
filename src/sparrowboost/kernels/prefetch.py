"""Prefetch hints for rows that are needed soon.

The rows of a small leaf are far apart in memory, where the processor's own prefetching does not
help. Their positions are known in advance, so the next rows can be fetched during the work on one.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

LINE = 64  # bytes of a cache line


def prefetch(array, at):
    """Prefetch array[at], where `at` is one index or two. Changes no value."""


@intrinsic
def _prefetch(context, array, at):
    """The same in LLVM."""
    two = array.ndim == 2

    def generate(context, builder, signature, values):
        made = context.make_array(signature.args[0])(context, builder, values[0])
        index = cgutils.unpack_tuple(builder, values[1]) if two else [values[1]]
        place = cgutils.get_item_pointer(context, builder, signature.args[0], made, index)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        to_read, to_keep, data = (ir.Constant(number, k) for k in (0, 3, 1))
        builder.call(hint, [builder.bitcast(place, byte), to_read, to_keep, data])
        return context.get_dummy_value()

    index = types.UniTuple(types.uint64, 2) if two else types.uint64
    return types.void(array, index), generate


@overload(prefetch, inline="always")
def _compiled_prefetch(array, at):
    return lambda array, at: _prefetch(array, at)
