"""Groups of rows."""

from __future__ import annotations

from headstart.evaluation.slices import EMPTY, OTHER, Slice, by_quartile, by_value


def test_quartiles():
    slices = by_quartile([1, 2, 3, 4, 5, 6, 7, 8])
    assert [part.name for part in slices] == ["1 to 2", "3 to 4", "5 to 6", "7 to 8"]
    assert [part.rows for part in slices] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_equal_numbers_share_a_quartile():
    assert by_quartile([3, 3, 3, 3]) == [Slice("3", [0, 1, 2, 3])]
    assert [part.rows for part in by_quartile([1, 1, 1, 1, 1, 1, 1, 9])] == [[0, 1, 2, 3, 4, 5, 6], [7]]


def test_values_by_size_with_empty_ones_last():
    slices = by_value(["x", "y", None, "y", "", float("nan")])
    assert slices == [Slice("y", [1, 3]), Slice("x", [0]), Slice(EMPTY, [2, 4, 5])]


def test_many_values():
    assert [part.name for part in by_value(list(range(40)))] == ["0 to 9", "10 to 19", "20 to 29", "30 to 39"]
    words = by_value(["common"] * 3 + [f"w{i}" for i in range(30)], limit=2)
    assert [(part.name, len(part.rows)) for part in words] == [("common", 3), ("w0", 1), (OTHER, 29)]
    assert len(by_value([True, False] * 30)) == 2
