"""Random calls of listed operators: a legal one, spoiled in some places.

Each is a graph of one node with its inputs.

The same seed and number make the same call in every process.
"""

import random
from dataclasses import dataclass, replace

import torch
from tests.security.legal_calls import LEGAL, Given

from potluck_wire.graph import DTYPE_BYTES, FLOATS, Buffer, Dtype, Graph, Input, Node, Output, Ref
from potluck_wire.operators import KIND_OF

SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 33)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    -2,
    8,
    64,
    1023,
    -1023,
    2**20,
    2**31,
    -(2**31),
    2**40,
    2**53,
    -(2**53),
)
FRACTIONS = (0.0, 1.0, -1.0, 0.5, 1e-3, 2.5, 1e30, -1e30, 1e-30, float("inf"), float("-inf"))
LAYOUTS = ("contiguous", "transposed", "expanded", "strided", "offset")
DTYPES = (*("float32",) * 6, *("float64", "int64") * 2, *sorted(DTYPE_BYTES))
WORDS = ("mean", "none", "same", "valid", "reflect", "floor", "ij,jk->ik", "...i->...", "")


@dataclass(frozen=True)
class Call:
    """One node with what it is given."""

    op: str
    args: tuple
    kwargs: dict
    train: bool

    def __str__(self):
        return f"{self.op}{self.args} {self.kwargs} {'in training' if self.train else ''}"


def call(seed, number):
    """The call of that number; one in eight is left legal."""
    rng = random.Random(f"{seed}/{number}")
    op = rng.choice(sorted(LEGAL))
    legal = rng.choice(LEGAL[op])
    args, kwargs = (legal[:-1], dict(legal[-1])) if isinstance(legal[-1], dict) else (legal, {})
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 4))):
        if kwargs and rng.random() < 0.2:
            name = rng.choice(sorted(kwargs))
            kwargs[name] = spoiled(rng, kwargs[name])
        else:
            args = spoiled_list(rng, args)
    return Call(op, args, kwargs, train=rng.random() < 0.5)


def spoiled_list(rng, items):
    """A list with one item changed, left out, doubled or added."""
    items = list(items)
    if not items or rng.random() < 0.04:
        return (*items, rng.choice([*items, *NUMBERS[:6], None]))
    place = rng.randrange(len(items))
    match rng.choice("ccccccccccdia"):
        case "d":
            del items[place]
        case "i":
            items.insert(place, items[place])
        case "a":
            items[place] = rng.choice(items)
        case _:
            items[place] = spoiled(rng, items[place])
    return tuple(items)


def spoiled(rng, value):
    """Another value, mostly of the same kind."""
    if rng.random() < 0.06:
        return rng.choice(
            [None, True, rng.choice(NUMBERS), rng.choice(FRACTIONS), (), rng.choice(WORDS)]
        )
    if isinstance(value, Given):
        return spoiled_tensor(rng, value)
    if isinstance(value, tuple):
        return spoiled_list(rng, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, 2 * value, -value, *rng.choices(NUMBERS, k=4)])
    if isinstance(value, float):
        return rng.choice(FRACTIONS)
    if isinstance(value, Dtype):
        return Dtype(rng.choice(DTYPES))
    if isinstance(value, str):
        return rng.choice(WORDS)
    return rng.choice(
        [Given(tuple(rng.choices(SIZES[:7], k=rng.randrange(4)))), rng.choice(NUMBERS[:8]), (1, 1)]
    )


def spoiled_tensor(rng, given):
    """A tensor of another shape, type, layout, or with other values."""
    shape = list(given.shape)
    match rng.choice(("size", "size", "size", "drop", "add", "swap", "type", "layout", "values")):
        case "size" if shape:
            place = rng.randrange(len(shape))
            shape[place] = rng.choice([*SIZES, shape[place] + 1, 2 * shape[place]])
        case "drop" if shape:
            del shape[rng.randrange(len(shape))]
        case "add" if len(shape) < 6:
            shape.insert(rng.randrange(len(shape) + 1), rng.choice(SIZES[:5]))
        case "swap":
            rng.shuffle(shape)
        case "type":
            return replace(given, dtype=rng.choice(DTYPES))
        case "layout":
            return replace(given, layout=rng.choice(LAYOUTS))
        case "values":
            return replace(given, below=rng.choice((-1, 0, 1, 2, 5, 6, 100, 2**31)))
    return replace(given, shape=tuple(shape))


# --- as a graph -----------------------------------------------------------------------------------


def graph_of(one):
    """The graph of one node, its inputs and the contents of its buffers."""
    found, state = [], []
    buffers = KIND_OF[one.op] in ("buffer", "cache")

    def numbered(value):
        if isinstance(value, Given):
            if buffers and not state and value is one.args[0]:
                state.append(value)
                return value
            if value not in found:
                found.append(value)
            return value
        if isinstance(value, tuple):
            return tuple(numbered(item) for item in value)
        return value

    numbered(one.args)
    numbered(tuple(one.kwargs.values()))

    def argument(value):
        if isinstance(value, Given):
            return Ref(len(found)) if state and value is state[0] else Ref(found.index(value))
        if isinstance(value, tuple):
            return tuple(argument(item) for item in value)
        return value

    kwargs = tuple((name, argument(value)) for name, value in one.kwargs.items())
    node = Node(number=0, op=one.op, args=argument(one.args), kwargs=kwargs)
    graph = Graph(
        inputs=tuple(
            Input(
                name=f"x{i}", dtype=given.dtype, shape=given.shape, gradient=given.dtype in FLOATS
            )
            for i, given in enumerate(found)
        ),
        buffers=tuple(
            Buffer(name="b", dtype=given.dtype, shape=given.shape, updated=True) for given in state
        ),
        nodes=(node,),
        outputs=tuple(
            Output(
                name=f"y{item}",
                ref=Ref(len(found) + len(state), item),
                dtype="float32",
                shape=(),
                gradient=False,
            )
            for item in (None,)
        ),
    )
    return graph, tuple(made(given) for given in found)


def made(given):
    """The tensor; its values depend on what is asked for alone."""
    generator = torch.Generator().manual_seed(sum(given.shape) + len(given.shape))
    shape, dtype = given.shape, getattr(torch, given.dtype)
    more = [2 * size for size in shape]
    drawn_shape = (
        shape if given.layout in ("contiguous", "probabilities", "expanded", "transposed") else more
    )
    if given.layout == "expanded":
        drawn_shape = [1] * len(shape)
    elif given.layout == "transposed":
        drawn_shape = shape[::-1]
    if given.dtype in FLOATS:
        draw = torch.rand if given.layout == "probabilities" else torch.randn
        values = draw(list(drawn_shape), generator=generator).to(dtype)
    else:
        low, high = (0, given.below) if given.below > 0 else (given.below - 1, 1)
        values = torch.randint(low, high, list(drawn_shape), generator=generator).to(dtype)
    if given.layout == "expanded":
        return values.expand(shape)
    if given.layout == "transposed":
        return values.permute(tuple(range(len(shape)))[::-1])
    if given.layout == "strided":
        return values[tuple(slice(None, None, 2) for _ in shape)]
    if given.layout == "offset":
        return values[tuple(slice(size, None) for size in shape)]
    return values
