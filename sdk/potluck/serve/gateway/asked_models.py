"""What clients ask a model for and what it answers, by the names of its inputs and outputs."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from potluck.serve.gateway import protocol
from potluck.serve.gateway.protocol import BadRequest, Infer, Port
from potluck.serve.gateway.thread_answers import ThreadAnswers

if TYPE_CHECKING:
    import torch

    from potluck.serve.gateway.traces import Tell
    from potluck.serve.runtime.pending_requests import Pending
    from potluck.serve.runtime.service import Service

FEW_ROWS = 16  # asked for at once, 0.7 ms each; more of them in a thread


def ports(model: Any) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """A model's inputs and outputs; what may change its size is -1.

    Parameters
    ----------
    model
        What is served.
    """
    traced = model.traced_line().traced
    inputs = tuple(
        Port(name, protocol.NAMES[port.dtype], _sizes(port.shape))
        for name, port in zip(input_names(model), traced.given, strict=True)
    )
    outputs = []
    for output in traced.graph.outputs:
        kind = traced.type_of(output.ref)
        outputs.append(Port(output.name, protocol.NAMES[kind.dtype], _sizes(kind.shape)))
    return inputs, tuple(outputs)


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def input_names(model: Any) -> tuple[str, ...]:
    """What its inputs are called: as `forward` does, or by their place."""
    known = model.arguments.inputs
    traced = model.traced_line().traced
    return tuple(name or port.name for name, port in zip(known, traced.given, strict=True))


def tensors_of(model: Any, inference: Infer) -> tuple[Any, ...]:
    """The inputs in order, as tensors.

    Parameters
    ----------
    model
        What is served.
    inference
        The request.

    Raises
    ------
    BadRequest
        One is missing, or there is none of that name, or it has another type or shape.
    """
    import torch

    expected, _ = ports(model)
    names = [port.name for port in expected]
    for place, name in enumerate(inference.inputs):
        if name not in names:
            where = f"inputs[{place}].name"
            raise BadRequest(
                f"{where}: no input is called {name!r}; there is {', '.join(names)}.", field=where
            )
    found = []
    for port in expected:
        if port.name not in inference.inputs:
            raise BadRequest(f"inputs: {port.name!r} is missing.", field="inputs")
        array = inference.inputs[port.name]
        got = Port(port.name, protocol.NAMES[str(array.dtype)], array.shape)
        fits = len(got.shape) == len(port.shape) and all(
            given == size or (size == -1 and given > 0)
            for size, given in zip(port.shape, got.shape, strict=True)
        )
        if got.datatype != port.datatype or not fits:
            field = f"inputs.{port.name}.{'shape' if not fits else 'datatype'}"
            raise BadRequest(
                f"{field}: {port.datatype} of {[*port.shape]} is expected, got {got.datatype} of "
                f"{[*got.shape]}.",
                field=field,
            )
        if port.datatype == "BF16":
            found.append(torch.from_numpy(array.view("int16")).view(torch.bfloat16))
        else:
            found.append(torch.from_numpy(array))
    return tuple(found)


def tell_nobody(pending: "Pending") -> None:
    """What became of a request is not told."""


async def answered(
    service: "Service", inference: Infer, answers: ThreadAnswers, tell: "Tell" = tell_nobody
) -> Mapping[str, Any]:
    """The outputs by name, as arrays.

    Parameters
    ----------
    service
        What is asked.
    inference
        The request.
    answers
        By which it is awaited.
    tell
        Called with what became of it.
    """
    tensors = tensors_of(service.model, inference)
    request = partial(service.request, *tensors, limit_s=inference.timeout_s)
    n_rows = max((tensor.shape[0] for tensor in tensors if tensor.ndim), default=1)
    if n_rows <= FEW_ROWS:
        pending = request()
    else:
        pending = await asyncio.get_running_loop().run_in_executor(None, request)
    try:
        answer = await answers.result(pending.future)
    finally:
        tell(pending)
    return arrays(service.model, answer)


def arrays(model: Any, answer: Any) -> dict[str, Any]:
    """What a module answered, by the names of its outputs.

    Parameters
    ----------
    model
        What is served.
    answer
        As the service gave it: a tensor, or tensors in the structure of the module's answer.
    """
    from torch.utils import _pytree as pytree

    names = [output.name for output in model.traced_line().traced.graph.outputs]
    leaves, _ = pytree.tree_flatten(answer)
    return {name: _array(tensor) for name, tensor in zip(names, leaves, strict=True)}


def _array(tensor: "torch.Tensor") -> Any:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(protocol.BF16)
    return tensor.numpy()
