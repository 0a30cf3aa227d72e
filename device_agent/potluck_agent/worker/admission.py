"""Whether an operator may run on these arguments: tried on meta tensors first, which have a shape
and no memory.

So sizes and types that do not fit are refused before native code sees real memory, and the bytes of
every result are known before the allocator is asked. What was admitted once is remembered by
operator, shapes, types and settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from potluck_wire.graph import SegmentError

from . import available_memory
from .bounds_checks import RULES, SHAPES
from .operators import OVERLOADS, function_of

MAX_REMEMBERED = 8192  # calls; a network has some hundred kinds for each size of batch
MAX_EXPANDED_BYTES = 2 << 30  # of a view of less memory: it takes none, but the next operator would
TABLE_BYTES = 64  # four places and weights of 8 bytes, as bicubic has them
_ORDINARY = (RuntimeError, TypeError, IndexError, ValueError, MemoryError, SegmentError)

_remembered: dict[tuple[Any, ...], int] = {}


def _makes_from_nothing(name: str) -> bool:
    """Whether an operator has no tensor to tell it that it is only being tried."""
    arguments = OVERLOADS[name]._schema.arguments
    return any(a.name == "device" for a in arguments) and not any(
        str(a.real_type) == "Tensor" for a in arguments
    )


FROM_NOTHING = frozenset(name for name in OVERLOADS if _makes_from_nothing(name))


def admit(op: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise SegmentError, or what torch raises, where the operator cannot run on these arguments in
    this memory.
    """
    key = (op, *(_signature(argument) for argument in args), *named.items())
    needed_bytes = _remembered.get(key)
    if needed_bytes is None:
        needed_bytes = _needed_bytes(op, args, named)
        if len(_remembered) >= MAX_REMEMBERED:
            del _remembered[next(iter(_remembered))]
        _remembered[key] = needed_bytes
    available_memory.require(needed_bytes, "its result")


def _signature(argument: Any) -> Any:
    """What the admission of an argument depends on; types too, as 1 == 1.0 == True."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, tuple(argument.shape), argument.stride()
    if isinstance(argument, list | tuple):
        return tuple(_signature(item) for item in argument)
    return type(argument), argument


def _needed_bytes(op: str, args: Sequence[Any], named: Mapping[str, Any]) -> int:
    """Bytes that the results take beside the arguments."""
    if op in SHAPES:
        return available_memory.bytes_of(SHAPES[op](*args), args[0].element_size(), "its result")
    if op in RULES:
        RULES[op](*args, **named)
    metas = [_meta(argument) for argument in args]
    more = {"device": "meta"} if op in FROM_NOTHING else {}
    try:
        with torch.no_grad():
            results = function_of(op, bool(named))(*metas, **{**named, **more})
    except _ORDINARY:
        raise
    except Exception as error:  # torch's Python code for shapes also asserts and divides
        raise SegmentError("bad-input", f"{type(error).__name__}: {error}"[:250]) from error
    if not isinstance(results, torch.Tensor | list | tuple):
        raise SegmentError("bad-input", "it is given numbers alone and makes no tensor")
    own = {tensor.untyped_storage()._cdata for tensor in _tensors(metas)}
    new_bytes = sum(_new_bytes(result, own) for result in _tensors([results]))
    return new_bytes + _scratch_bytes(op, metas, results)


def _scratch_bytes(op: str, metas: Sequence[Any], result: Any) -> int:
    """Bytes that a kernel takes beside its result: one that resizes has tables of where each place
    of the result comes from, along each dimension.
    """
    if "upsample" not in op:
        return 0
    sizes: list[int] = [*metas[0].shape[2:], *result.shape[2:]]
    return TABLE_BYTES * sum(sizes)


def _meta(argument: Any) -> Any:
    """The argument without its memory."""
    if isinstance(argument, torch.Tensor):
        return torch.empty_strided(
            argument.shape, argument.stride(), dtype=argument.dtype, device="meta"
        )
    if isinstance(argument, list | tuple):
        return [_meta(item) for item in argument]
    return argument


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """All tensors, in lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _new_bytes(result: torch.Tensor, own: set[int]) -> int:
    """Bytes of a result, 0 where it looks at the memory of an argument."""
    value_bytes = available_memory.bytes_of(result.shape, result.element_size(), "its result")
    storage = result.untyped_storage()
    if storage._cdata not in own:
        return max(value_bytes, storage.nbytes())
    if value_bytes > max(storage.nbytes(), MAX_EXPANDED_BYTES):
        raise SegmentError(
            "out-of-memory", f"its result: a view of {value_bytes} bytes of less memory"
        )
    return 0
