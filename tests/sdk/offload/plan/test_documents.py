"""Splits are read from files that anything may have been written into."""

import json
from types import SimpleNamespace

import pytest

from potluck.offload.plan.documents import found_document, read_found
from potluck.offload.plan.split import Split

SPLIT = Split(
    divisions=(((0, 5), (5, 10)),),
    tiles=2,
    latency_s=0.1,
    energy_j=0.2,
    sent_bytes=3,
    received_bytes=4,
)
SHARING = SimpleNamespace(operators=(SimpleNamespace(count=10),), n_sides=2)
FIELDS = ("tiles", "latency_s", "energy_j", "sent_bytes", "received_bytes")


def written(**fields):
    document = found_document(((0.0, SPLIT),))
    document["entries"][0]["split"].update(fields)
    return json.loads(json.dumps(document))


def test_what_was_written_is_read():
    assert read_found(written(), SHARING) == ((0.0, SPLIT),)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), -1, None, [], "x"], ids=str)
@pytest.mark.parametrize("field", FIELDS)
def test_figures_that_cannot_be_are_no_splits(field, value):
    assert read_found(written(**{field: value}), SHARING) is None


@pytest.mark.parametrize("field", ["tiles", "sent_bytes", "received_bytes"])
def test_no_count_is_infinite(field):
    assert read_found(written(**{field: float("inf")}), SHARING) is None
