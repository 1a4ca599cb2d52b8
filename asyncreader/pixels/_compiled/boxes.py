"""A kernel that copies boxes of arrays, such as the parts of chunks that samples are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from .base import instruction, kernel, offsets_type
from .memory import load, load_any, memcpy, store, store_any

#: Bytes of each of three lines that are woven in one go.
_WOVEN = 16


@instruction(types.void(types.uintp, types.uintp, types.uintp, types.uintp))
def _weave(builder, out, first, second, third):
    """Write 16 times a byte of each of three addresses, in turn."""
    vector, number = ir.VectorType(ir.IntType(8), _WOVEN), ir.IntType(32)

    def shuffled(a: Any, b: Any, lanes: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(number, len(lanes)), lanes)
        return builder.shuffle_vector(a, b, mask)

    one, two, three = (load_any(builder, address, vector) for address in (first, second, third))
    each, wide = list(range(_WOVEN)), 2 * _WOVEN
    pair = shuffled(one, two, [*each, *(_WOVEN + k for k in each)])
    other = shuffled(three, three, [*each, *each])
    # lanes of the pair, then those of the third
    lanes = [lane for k in each for lane in (k, _WOVEN + k, wide + k)]
    store_any(builder, shuffled(pair, other, lanes), out)


@njit(inline="always")
def _steps(go, come, count, far, near, kind):
    for _ in range(count):
        store(go, load(come, kind))
        go, come = go + far, come + near


@njit
def _line(go, come, count, far, near, run):
    """Copy ``run`` bytes ``count`` times, ``far`` and ``near`` apart."""
    if run == 1:
        _steps(go, come, count, far, near, np.uint8)
    elif run == 2:
        _steps(go, come, count, far, near, np.uint16)
    elif run == 4:
        _steps(go, come, count, far, near, np.uint32)
    elif run == 8:
        _steps(go, come, count, far, near, np.uint64)
    else:
        for _ in range(count):
            memcpy(go, come, np.uintp(run))
            go, come = go + far, come + near


@njit
def _three_lines(go, one, two, three, count):
    """Copy ``count`` bytes of each of three lines, in turn."""
    k = 0
    while k < count:
        if count >= _WOVEN:
            k = min(k, count - _WOVEN)  # some of the last ones twice
            at = np.uintp(k)
            _weave(go + np.uintp(3 * k), one + at, two + at, three + at)
            k += _WOVEN
        else:
            at, to = np.uintp(k), go + np.uintp(3 * k)
            store(to, load(one + at, np.uint8))
            store(to + np.uintp(1), load(two + at, np.uint8))
            store(to + np.uintp(2), load(three + at, np.uint8))
            k += 1


@njit
def _together(sources, targets, extents, i):
    """Whether the boxes ``i``, ``i + 1`` and ``i + 2`` are one byte apart, and as large."""
    if i + 2 >= sources.size:
        return False
    for other in range(1, 3):
        if targets[i + other] != targets[i] + other:
            return False
        for axis in range(extents.shape[1]):
            if extents[i + other, axis] != extents[i, axis]:
                return False
    return True


@kernel(offsets_type, offsets_type, types.int64[:, ::1], offsets_type, offsets_type, types.int64)
def copy_boxes(sources, targets, extents, near, far, item):
    """Copy boxes of elements of ``item`` bytes. Box ``i`` has ``extents[i]`` (n, rank) elements,
    which lie ``near`` (rank,) bytes apart from ``sources[i]`` on, and go ``far`` bytes apart from
    ``targets[i]`` on."""
    at = np.zeros(extents.shape[1], np.int64)
    i = 0
    while i < sources.size:
        run, last, lines = item, extents.shape[1] - 1, 1
        while last >= 0 and (extents[i, last] == 1 or (near[last] == run and far[last] == run)):
            run *= extents[i, last]
            last -= 1
        for axis in range(last):
            lines *= extents[i, axis]
        come, go, boxes = np.uintp(sources[i]), np.uintp(targets[i]), 1
        if last < 0:
            memcpy(go, come, np.uintp(run))
            i += 1
            continue
        count, step = extents[i, last], np.uintp(far[last])
        if (
            run == 1
            and near[last] == 1
            and far[last] == 3
            and _together(sources, targets, extents, i)
        ):
            boxes = 3
            second = np.uintp(sources[i + 1] - sources[i])
            third = np.uintp(sources[i + 2] - sources[i])
        at[:] = 0
        for _ in range(lines):
            if boxes == 3:
                _three_lines(go, come, come + second, come + third, count)
            else:
                _line(go, come, count, step, np.uintp(near[last]), run)
            axis = last - 1
            while axis >= 0:
                at[axis] += 1
                come, go = come + np.uintp(near[axis]), go + np.uintp(far[axis])
                if at[axis] < extents[i, axis]:
                    break
                come -= np.uintp(near[axis] * extents[i, axis])
                go -= np.uintp(far[axis] * extents[i, axis])
                at[axis] = 0
                axis -= 1
        i += boxes
