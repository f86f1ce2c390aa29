"""The measurement of streams: what it counts, what it demands, what it draws."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from sana_like_app.bench.plot import curves_svg
from sana_like_app.bench.stream import bars, measure, measure_both

MARKS = [
    {"frames": 81, "peak_mb": 900.0, "state_bytes": 1000, "seconds_per_frame": 0.100},
    {"frames": 321, "peak_mb": 950.0, "state_bytes": 1000, "seconds_per_frame": 0.101},
    {"frames": 2401, "peak_mb": 975.0, "state_bytes": 1000, "seconds_per_frame": 0.110},
]


def test_bars():
    assert all(bars(MARKS, [7, 7]).values())
    for change, failed in (
        ({"peak_mb": 990.0}, "memory"),
        ({"state_bytes": 1001}, "state_bytes"),
        ({"seconds_per_frame": 0.12}, "time"),
    ):
        marks = [*MARKS[:-1], MARKS[-1] | change]
        assert [name for name, reached in bars(marks, [7, 7]).items() if not reached] == [failed]
    assert not bars(MARKS, [7, 8])["operations"]


@pytest.mark.parametrize("frames", [[81], [81, 81], [10, 100], [100, 81], [81, 90]])
def test_marks_that_say_nothing(frames):
    with pytest.raises(ValueError, match="rising by at least 40"):
        measure_both(frames)


def test_plot_is_a_picture_with_every_point():
    text = curves_svg(
        {"linear": [(81, 1.0), (321, 1.0)], "softmax <&>": [(81, 3.0), (321, 12.0)]},
        title="memory", across="frames", up="MB",
    )  # fmt: skip
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}circle")) == 4
    assert len(root.findall(f"{space}polyline")) == 2
    with pytest.raises(ValueError, match="curves"):
        curves_svg({}, title="", across="", up="")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_state_is_constant_or_grows(kind):
    report = measure({"kind": kind, "frames": [41, 121], "side": 64, "model": None})
    sizes = [mark["state_bytes"] for mark in report["marks"]]
    assert (sizes[0] == sizes[1]) == (kind == "linear")
    assert len(report["flops"]) == 2 and min(report["flops"]) > 0
    assert kind == "softmax" or report["flops"][0] == report["flops"][1]
