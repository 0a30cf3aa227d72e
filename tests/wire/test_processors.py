"""What a device computes with, in words."""

import pytest

from potluck_wire.processors import row, words


@pytest.mark.parametrize(
    ("processor", "cores", "expected"),
    [
        (
            row("i5", "cpu", threads=4, reason="fastest of 1, 4, 8", flops_per_s=1.9e11),
            8,
            "i5 (cpu): 4 of 8 threads: fastest of 1, 4, 8: 190 GFLOP/s",
        ),
        (row("i5", "cpu", threads=1), None, "i5 (cpu): 1 thread"),
        (row("i5", "cpu", threads=1), 1, "i5 (cpu): 1 of 1 thread"),
        (row("T4", "cuda", flops_per_s=8.1e12), 8, "T4 (cuda): 8,100 GFLOP/s"),
        (row("ANE", "coreml", used=False), 8, "ANE (coreml) is left out"),
        (
            row("ANE", "coreml", used=False, reason="it answers wrongly"),
            8,
            "ANE (coreml) is left out: it answers wrongly",
        ),
        ({"name": "x", "kind": "npu"}, 8, "x (npu)"),  # a newer agent says less
    ],
)
def test_a_processor_in_words(processor, cores, expected):
    assert list(words([processor], cores)) == [expected]
