"""Where a gradient flows: per operator, and in networks, as torch's autograd has it."""

import pytest
from tests.security.legal_calls import LEGAL, Given
from tests.security.operator_calls import made

from potluck.graph.gradient_flow import differentiated
from potluck_wire.graph import FLOATS, Dtype, Node, Ref, refs
from potluck_wire.operators import KIND_OF

torch = pytest.importorskip("torch")
operators = pytest.importorskip("potluck_agent.worker.operators")


def operator(name):
    if name in operators.OWN:
        return operators.OWN[name]
    packet, overload = name.removeprefix("aten.").rsplit(".", 1)
    return getattr(getattr(torch.ops.aten, packet), overload)


def separately(value, tensors):
    """An argument as our nodes have it: every tensor is a value of its own."""
    if isinstance(value, Given):
        tensors.append(made(value))
        return Ref(len(tensors) - 1)
    return tuple(separately(item, tensors) for item in value) if isinstance(value, tuple) else value


def as_torch(value, tensors):
    if isinstance(value, Ref):
        return tensors[value.value]
    if isinstance(value, Dtype):
        return getattr(torch, value.name)
    return [as_torch(item, tensors) for item in value] if isinstance(value, tuple) else value


def reached(op, args, kwargs, tensors, place):
    """Whether torch's derivative of this operator leads to that tensor.

    None where it has none for it and says so.
    """
    given = [t.clone().requires_grad_() if i == place else t for i, t in enumerate(tensors)]
    if KIND_OF[op] in ("buffer", "cache"):
        return False  # a buffer that is changed in place: nothing learns from it
    try:
        result = operator(op)(
            *as_torch(args, given), **{k: as_torch(v, given) for k, v in kwargs.items()}
        )
        results = [
            r
            for r in (result if isinstance(result, list | tuple) else (result,))
            if r.is_floating_point()
        ]
        if not any(r.requires_grad for r in results):
            return False if results else None  # numbers of another kind carry none in any case
        results = [r for r in results if r.requires_grad]
        (found,) = torch.autograd.grad(
            [r.sum() for r in results], [given[place]], allow_unused=True
        )
    except (RuntimeError, NotImplementedError) as error:
        if any(
            words in str(error) for words in ("derivative", "differentiable", "sparse gradients")
        ):
            return None
        raise
    return found is not None


@pytest.mark.parametrize("op", sorted(LEGAL))
def test_an_operator_hands_gradients_to_what_torch_hands_them_to(op):
    for legal in LEGAL[op]:
        args, kwargs = (legal[:-1], legal[-1]) if isinstance(legal[-1], dict) else (legal, {})
        tensors = []
        args = tuple(separately(value, tensors) for value in args)
        kwargs = {name: separately(value, tensors) for name, value in kwargs.items()}
        node = Node(number=0, op=op, args=args, kwargs=tuple(kwargs.items()))
        found = differentiated(node)
        for ref in (*refs(args), *refs(tuple(kwargs.values()))):
            if str(tensors[ref.value].dtype).removeprefix("torch.") not in FLOATS:
                continue
            expected = reached(op, args, kwargs, tensors, ref.value)
            assert expected is None or expected == (ref in found), (op, legal, ref)
