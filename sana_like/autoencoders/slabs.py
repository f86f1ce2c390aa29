"""Convolutions of high resolutions on a CPU, a slab of rows at a time, for inference.

What one layer writes the next reads while it is still in the cache, memory is used again instead
of being asked for anew, and no plane exists beside the input and the output.

Legend: `Y`, `X` plane, `C` channels; `h` rows of a slab; planes here are `[Y, X, C]`, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

# Bytes of the rows that a slab reads.
SLAB = 8 * 2**20
FEWEST_ROWS = 4
# With fewer pixels, adding up the kernels' taps costs more than the smaller kernels save.
FEWEST_PIXELS = 1024

# By bytes of a number: integers of its size and of twice its size, and the bits of one.
_INTEGERS = {2: (torch.int16, torch.int32, 16), 4: (torch.int32, torch.int64, 32)}

# From a slab `[h, X, C]` and where to put the result, a view `[h, X, C]` of the output.
Finish = Callable[[Tensor, Tensor], object]


def slabs(plane: Tensor) -> Iterator[tuple[int, int]]:
    """First and last row of slabs of `plane`."""
    row = plane[0].numel() * plane.element_size()
    height = max(FEWEST_ROWS, SLAB // max(row, 1))
    for start in range(0, len(plane), height):
        yield start, min(start + height, len(plane))


def conv_rows(plane: Tensor, weight: Tensor, bias: Tensor | None, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of a zero-padded 3x3 convolution of the whole plane."""
    first, last = max(start - 1, 0), min(stop + 1, len(plane))
    # Only a slab at an edge of the plane is padded; it yields rows that belong to neither.
    edge = first == start or last == stop
    out = _convolve(plane[first:last], weight, bias, (int(edge), 1))
    return out[start - first : stop - first] if edge else out


def two_convs(
    plane: Tensor,
    first: tuple[Tensor, Tensor | None],
    between: Callable[[Tensor, Tensor], object],
    second: tuple[Tensor, Tensor | None],
    finish: Finish,
    out: Tensor,
) -> None:
    """3x3 convolution, something pointwise, 3x3 convolution, something pointwise.

    Args:
        plane: `[Y, X, C]`.
        first, second: weights and biases; both keep the width C.
        between: writes its result for the first argument into the second.
        finish: takes a result `[h, X, C]`, then the rows that it belongs to as a slice.
        out: where `finish` writes. It may be `plane`: a slab's rows are read for the last time
            before they are written.
    """
    height = len(plane)
    spans = list(slabs(plane))
    tallest = max(stop - start for start, stop in spans)
    # Rows start - 1 to stop + 1 of what lies between; the plane is zero outside.
    middle = plane.new_zeros(tallest + 2, *plane.shape[1:])
    for start, stop in spans:
        low, high = (0 if start == 0 else start + 1), min(stop + 1, height)
        if low < high:
            offset = low - start + 1
            between(conv_rows(plane, *first, low, high), middle[offset : offset + high - low])
        if stop == height:
            middle[stop - start + 1] = 0
        rows = _convolve(middle[: stop - start + 2], *second, (0, 1))
        finish(rows, out[start:stop])
        # The next slab begins with two rows that are known already.
        middle[:2] = middle[stop - start : stop - start + 2].clone()


def phase_weights(weight: Tensor) -> Tensor:
    """A 3x3 kernel after doubling by repetition, as four 2x2 kernels before it.

    Of the three rows that the kernel reads of a doubled plane two are copies of one row, so their
    taps can be added first; likewise columns. Which two depends on the phase, that is on whether
    the row written is even or odd.

    Args:
        weight: `[O, I, 3, 3]`.

    Returns:
        `[4*O, I, 2, 2]`, phases (row, column) outermost, channels last; sums in fp32.
    """
    taps = weight.permute(2, 3, 0, 1)  # [row, column, O, I]
    taps = taps.to(torch.float32, memory_format=torch.contiguous_format)
    rows = _phases(taps).movedim(2, 0)  # [column, row phase, row tap, O, I]
    both = _phases(rows).to(weight.dtype)  # [column phase, column tap, row phase, row tap, O, I]
    return both.permute(2, 0, 4, 3, 1, 5).flatten(0, 2).permute(0, 3, 1, 2)


def _phases(taps: Tensor) -> Tensor:
    """`[3, ...]` to `[phase, tap, ...]`."""
    first, middle, last = taps
    even = torch.stack([first, middle + last])
    return torch.stack([even, torch.stack([first + middle, last])])


def doubled_conv(
    plane: Tensor, phases: Tensor, bias: Tensor | None, finish: Callable[..., object], out: Tensor
) -> None:
    """Nearest-neighbour doubling and a zero-padded 3x3 convolution.

    Args:
        plane: `[Y, X, C]`.
        phases: from `phase_weights`.
        bias: `[4*O]` or `None`.
        finish: takes the results of the phases, four `[h, X, O]`, the rows `[h, X, C]` of `plane`
            that they belong to, and the four views of `out` to write.
        out: `[2*Y, 2*X, O]`.
    """
    width = plane.shape[1]
    for start, stop in slabs(plane):
        first, last = max(start - 1, 0), min(stop + 1, len(plane))
        edge = start == 0 or stop == len(plane)
        pairs = _convolve(plane[first:last], phases, bias, (int(edge), 1))
        # Row p of `pairs` comes from rows p - 1 and p, counted from `first` where padded.
        offset = start - first if edge else 0
        results, views = [], []
        for phase, part in enumerate(pairs.chunk(4, dim=-1)):
            down, right = divmod(phase, 2)
            top = offset + down
            results.append(part[top : top + stop - start, right : right + width])
            views.append(out[2 * start + down : 2 * stop : 2, right::2])
        finish(results, plane[start:stop], views)


def halved_conv(
    plane: Tensor, weight: Tensor, bias: Tensor | None, finish: Callable[..., object], out: Tensor
) -> None:
    """Zero-padded 3x3 convolution in steps of two.

    Args:
        plane: `[Y, X, C]`, Y even.
        weight, bias: of the convolution.
        finish: takes a result `[h, X / 2, O]`, the rows `[2*h, X, C]` of `plane` that it belongs
            to, and the rows of `out` to write.
        out: `[Y / 2, X / 2, O]`.
    """
    for start, stop in slabs(plane[::2]):
        first = max(2 * start - 1, 0)
        padding = (int(start == 0), 1)
        rows = _convolve(plane[first : 2 * stop], weight, bias, padding, step=2)
        finish(rows, plane[2 * start : 2 * stop], out[start:stop])


def split_channels(x: Tensor, parts: int) -> list[Tensor]:
    """Channels 0, parts, ..., then 1, parts + 1, ... of `[..., C]`, each contiguous.

    Args:
        x: with a contiguous last axis.
        parts: 1, 2 or 4.
    """
    if parts == 1:
        return [x]
    # Two neighbours are the halves of one wide integer; picking every other number is slow.
    narrow, wide, bits = _INTEGERS[x.element_size()]
    pairs = x.view(wide)
    halves = [pairs.to(narrow).view(x.dtype), (pairs >> bits).to(narrow).view(x.dtype)]
    if parts == 2:
        return halves
    even, odd = (split_channels(half, parts // 2) for half in halves)
    return [part for pair in zip(even, odd, strict=True) for part in pair]


def merge_channels(even: Tensor, odd: Tensor) -> Tensor:
    """Inverse of `split_channels` for two parts."""
    narrow, wide, bits = _INTEGERS[even.element_size()]
    low = even.contiguous().view(narrow).to(wide).bitwise_and_(2**bits - 1)
    high = odd.contiguous().view(narrow).to(wide).bitwise_left_shift_(bits)
    return low.bitwise_or_(high).view(even.dtype)


def _convolve(
    rows: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int], step: int = 1
) -> Tensor:
    """`[h, X, C]` to `[h', X', O]`."""
    # In this order of steps the strides are those of a channels-last batch of one.
    planes = rows.unsqueeze(0).permute(0, 3, 1, 2)
    out = F.conv2d(planes, weight, bias, stride=step, padding=padding)
    return out.permute(0, 2, 3, 1)[0]
