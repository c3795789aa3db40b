"""Which batch sizes a curve needs, and what is read off it."""

from __future__ import annotations

from gpubalance.planning.curve import knee_sizes, octaves


def line_curve(alpha: float, beta: float, sizes: list[int]) -> list[tuple[int, float]]:
    return [(b, b / (alpha + beta * b)) for b in sizes]


def test_the_knee_of_a_line_gets_thirds_of_an_octave_and_its_ends_do_not() -> None:
    points = line_curve(0.05, 0.0007, octaves(8, 8192, 1))
    all_of_them = {size for size, _ in points}
    wanted = knee_sizes(points, 1, all_of_them)
    knee = 0.05 / 0.0007  # where the throughput is half of its limit
    assert any(knee < size < 4 * knee for size in wanted)
    assert not any(size < knee / 4 or size > 32 * knee for size in wanted)
    # Once they are measured, no more are wanted between them.
    again = knee_sizes(
        sorted(points + line_curve(0.05, 0.0007, wanted)), 1, {*all_of_them, *wanted}
    )
    assert again == []
    # Between points that are on a line it says what they are.
    assert knee_sizes(points, 1, ()) == []
    assert {size for size in wanted if 128 < size < 512} == set(
        knee_sizes(points, 1, {256})
    )
