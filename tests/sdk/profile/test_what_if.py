"""Devices of the library in a profile that has none of them."""

from potluck.profile.estimate import estimate
from potluck.profile.what_if import kinds


def test_each_kind_that_is_offered_can_be_added():
    profile = estimate("family", "mobilenet-v2-cifar", max_layers=4, rows=(1, 8))
    assert len(kinds()) > 10
    for kind in kinds():
        assert profile.with_device(kind).devices[-1].kind == kind
