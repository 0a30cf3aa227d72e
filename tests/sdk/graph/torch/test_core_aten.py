"""Every operator of Core ATen, by torch's own tags: on the devices' list, written out in operators
that are, or refused with a reason.
"""

import pytest

from potluck.graph.torch.convert import passed
from potluck.graph.torch.custom_decompositions import WAYS
from potluck.graph.torch.decompose import way
from potluck.graph.torch.refusals import REASONS, UNKNOWN, reason
from potluck_wire.operators import OPERATORS

torch = pytest.importorskip("torch")


def core():
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
            if op is not None and torch.Tag.core in op.tags:
                found.append(op)
    return found


def verdict(op):
    name = str(op)
    if name in OPERATORS:
        return "listed"
    if reason(op) is not UNKNOWN:
        return "refused"
    if passed(name):  # `empty` as zeros, casts as `to.dtype`
        return "converted"
    return "written out" if name in WAYS or way(op) is not None else "unknown"


def test_each_operator_has_a_verdict():
    verdicts = {str(op): verdict(op) for op in core()}
    assert len(verdicts) >= 190
    assert [name for name, found in verdicts.items() if found == "unknown"] == []
    listed = sum(found == "listed" for found in verdicts.values())
    assert listed >= 140


def test_what_is_refused_has_a_reason_and_a_way_out():
    for why in REASONS:
        assert why.text
        assert why.next_step.endswith((".", ".)"))
    assert len({why.text for why in REASONS}) == len(REASONS)


REASON_OF = {
    "rand.default": "draws random numbers",
    "nonzero.default": "of the data",
    "as_strided.default": "as it lies",
    "convolution_backward.default": "backward pass",
    "sym_size.int": "about sizes",
    "atan2.out": "others may see",
    "_linalg_svd.default": "fails for some values",
}


@pytest.mark.parametrize("name", REASON_OF)
def test_the_reason_comes_from_schemas_and_tags(name):
    packet, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    assert REASON_OF[name] in reason(op).text
