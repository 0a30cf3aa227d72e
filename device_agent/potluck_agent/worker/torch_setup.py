"""Make torch ready for computing and nothing else: without its compiler, and with everything lazy
already loaded.

Loading later would fail (the worker stands in no folder) and would count as somebody's memory and
time.
"""

import operator
import os
import sys
import types
from functools import cache
from typing import Any

import torch

# elements: above torch's grain of 32,768, so that the work is shared among all threads
LARGE = 1 << 18
_COMPILER = "torch._dynamo"
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"


class _Nothing:
    """The class of symbolic numbers, of which there are none here."""


# module -> what of it is used where all sizes are plain integers
STAND_INS: dict[str, dict[str, Any]] = {
    _COMPILER: {"disable": lambda function, *_, **__: function, "graph_break": lambda *_: None},
    _SYMBOLS: {
        **dict.fromkeys(
            ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious"), bool
        ),
        **dict.fromkeys(("statically_known_true", "definitely_true", "definitely_false"), bool),
        **dict.fromkeys(("guard_int", "guarding_hint_or_throw"), int),
        **dict.fromkeys(("is_nested_int", "is_symbolic"), lambda _: False),
        **dict.fromkeys(("constrain_range", "_constrain_range_for_size"), lambda *_, **__: None),
        "sym_eq": operator.eq,
        "sym_and": lambda *terms: all(terms),
        "sym_or": lambda *terms: any(terms),
        "has_guarding_hint": lambda _: True,
        "free_unbacked_symbols": lambda _: set(),
    },
    "sympy": {"Basic": _Nothing, "Symbol": _Nothing, "Expr": _Nothing},
    "torch.utils._sympy.functions": {"Max": max, "Min": min},
}


def prepare(threads: int, device: str = "") -> None:
    """Use every part of torch that tasks use, once in a process; on that accelerator, too."""
    torch.set_num_threads(max(1, threads))
    torch.ones(LARGE).exp_()  # starts the other threads: later, no thread may be started
    _use_all(device)


@cache
def _use_all(device: str) -> None:
    stood_in = _without_compiler()
    try:
        _learn()
    except (AttributeError, ImportError):  # a torch that wants more of them than the stand-ins have
        for name in stood_in:
            sys.modules.pop(name, None)
        if _COMPILER in stood_in:
            del torch._dynamo
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.prefix  # no folder may be made, one is there
        _learn()
    if device:
        _learn(device)


def _without_compiler() -> list[str]:
    """Stand-ins for modules that torch loads lazily and hardly uses here (torch 2.13).

    Returns their names.

    Its optimizers load its compiler, only to tell it to leave them alone: 1.8 s and 66 MiB. Its
    backward and its shapes of meta tensors load symbolic shapes, and sympy, only to compare two
    sizes: 1.4 s.
    """
    stood_in = [name for name in STAND_INS if name not in sys.modules]
    for name in stood_in:
        module = types.ModuleType(name)
        module.__dict__.update(STAND_INS[name])
        sys.modules[name] = module
    if _COMPILER in stood_in:
        torch._dynamo = sys.modules[_COMPILER]
    return stood_in


def _learn(device: str = "cpu") -> None:
    """A forward run, a backward run from a given gradient and a step of each optimizer, all tiny;
    shapes of all kinds.

    Raises ImportError where this torch wants more of a module than its stand-in has.
    """
    # products take their buffers, of some MiB, at the first
    torch.ones(LARGE // 256, 256, device=device) @ torch.ones(256, 1024, device=device)
    weight = torch.ones(8, 3, 3, 3, device=device, requires_grad=True)
    image = torch.ones(2, 3, 8, 8, device=device)
    output = torch.nn.functional.conv2d(image, weight).flatten(1) @ torch.ones(
        288, 4, device=device
    )
    torch.autograd.backward(output, torch.ones_like(output))
    for optimizer in (torch.optim.SGD([weight], lr=0.1, momentum=0.9), torch.optim.AdamW([weight])):
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad(set_to_none=True)
    _learn_shapes()


def _learn_shapes() -> None:
    """Operators on meta tensors, one for each way that torch has to tell a shape: its Python code
    is loaded here.
    """
    aten = torch.ops.aten
    x = torch.ones(4, 6, device="meta")
    image = torch.ones(2, 4, 6, 6, device="meta")
    classes, four = torch.zeros(4, dtype=torch.int64, device="meta"), torch.ones(4, device="meta")
    heads = torch.ones(2, 4, 6, 8, device="meta")
    with torch.no_grad():
        aten.relu(x)
        aten.matmul(x, x.t())
        aten.conv2d(image, torch.ones(4, 4, 3, 3, device="meta"), four)
        aten.max_pool2d(image, [2, 2])
        aten.upsample_nearest2d(image, [9, 9], None)
        aten.batch_norm(image, four, four, four, four, True, 0.1, 1e-5, False)
        aten.layer_norm(x, [6], None, None)
        aten.scaled_dot_product_attention(heads, heads, heads)
        aten.cross_entropy_loss(x, classes)
        aten.index(x, [classes])
        aten.dropout(x, 0.5, True)
        aten.einsum("ij,kj->ik", [x, x])
        aten.cat([x, x], 1)
        aten.split(x, 2)
