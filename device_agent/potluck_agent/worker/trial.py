"""What a throw-away worker does: it times a small model on the CPU with some counts of threads, or
on an accelerator, whose answer has to be the CPU's.

The model is the two products of a transformer's feed-forward layer. It is made here: nothing of
anybody else is computed.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from potluck_agent.worker.arrays.backends import backends
from potluck_wire.messages import ProcessorTried, TryProcessor
from potluck_wire.processors import MAX_NAME, MAX_REASON, PROVIDERS, line

ROWS = 64
WIDTH = 512
HIDDEN = 2048
FLOP = 4 * ROWS * WIDTH * HIDDEN  # 268 million: 5 ms on one core that does 50 GFLOP/s
# Of the largest answer. Products in half precision err by a thousandth; bfloat16, with an eighth of
# its digits, is another answer.
TOLERANCE_FRAC = 2e-3

Work = Callable[[], Any]


class WrongResult(Exception):
    """An accelerator that does not compute what the CPU does."""


def attempt(trial: TryProcessor, confine: Callable[[], object]) -> ProcessorTried:
    """The answer to a trial; what goes wrong is a part of it.

    Parameters
    ----------
    trial
        What to try.
    confine
        Called once everything is set up: the bounds that a worker has.
    """
    try:
        if trial.device:
            return _of_torch(trial, confine)
        if trial.provider:
            work = _bounded(trial.provider, confine)
            return ProcessorTried(flops_per_s=rates(lambda _: work, (1,), trial.budget_s))
        present = backends(trial.backends)
        providers = offered() if "onnxruntime" in present else ()
        if not trial.threads:
            return ProcessorTried(providers=providers)
        with_threads = torch_with_threads if "torch" in present else onnx_with_threads
        with_threads(max(trial.threads))()
        confine()
        found = rates(with_threads, trial.threads, trial.budget_s)
        return ProcessorTried(flops_per_s=found, providers=providers)
    except Exception as error:  # whatever it is, it is a reason not to use this processor
        return ProcessorTried(reason=line(str(error) or type(error).__name__, MAX_REASON))


def _of_torch(trial: TryProcessor, confine: Callable[[], object]) -> ProcessorTried:
    """Which devices of a kind torch sees; or whether one computes as the CPU does, in both
    directions, and what it is.
    """
    from potluck_agent.worker import torch_setup
    from potluck_agent.worker.arrays import torch_device

    if ":" not in trial.device:
        return ProcessorTried(devices=torch_device.offered(trial.device))
    expected = [answer.numpy() for answer in torch_with_gradient("cpu")()]
    torch_setup.prepare(1, trial.device)
    torch_with_gradient(trial.device)()
    arrays = torch_device.accelerator(trial.device, trial.memory_bytes)
    confine()
    for answer, right in zip(torch_with_gradient(trial.device)(), expected, strict=True):
        check(arrays.to_numpy(answer), right)
    product = torch_with_threads(1, trial.device)

    def work() -> None:
        product()
        arrays.synchronize()

    return ProcessorTried(
        flops_per_s=rates(lambda _: work, (1,), trial.budget_s),
        name=line(torch_device.name_of(arrays.device), MAX_NAME),
        memory_bytes=arrays.free_bytes(),
        dtypes=tuple(arrays.DTYPES),
    )


def _bounded(provider: str, confine: Callable[[], object]) -> Work:
    """The model on an accelerator, set up as a worker does it: once before its bounds, then within
    them.
    """
    expected = onnx_with_threads(1)()
    first = onnx_with_threads(1, provider)  # stays, with what its driver has opened
    check(first(), expected)
    confine()
    work = onnx_with_threads(1, provider)
    check(work(), expected)
    return lambda: (first, work())


def offered() -> tuple[str, ...]:
    """Short names of the accelerators that this onnxruntime was built for."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return tuple(name for name, provider in PROVIDERS.items() if provider in available)


def rates(
    with_threads: Callable[[int], Work], counts: Sequence[int], budget_s: float
) -> tuple[float, ...]:
    """Flop per second of the quickest run for each count of threads.

    All are tried twice, there and back, so that no other program slows only one of them.

    Parameters
    ----------
    with_threads
        Called with a count: the model to run with so many threads.
    counts
        Of threads.
    budget_s
        For all of it; only the first run of each may last longer.
    """
    quickest_s = dict.fromkeys(counts, float("inf"))
    share_s = budget_s / (2 * len(counts))
    end_s = time.monotonic() + budget_s
    for count in (*counts, *reversed(counts)):
        if quickest_s[count] < float("inf") and time.monotonic() > end_s:
            continue
        work = with_threads(count)
        work()  # starts its threads
        quickest_s[count] = min(quickest_s[count], _quickest_s(work, share_s))
    return tuple(FLOP / quickest_s[count] for count in counts)


def _quickest_s(work: Work, share_s: float) -> float:
    times_s: list[float] = []
    while not times_s or sum(times_s) < share_s:
        start_s = time.perf_counter()
        work()
        times_s.append(max(time.perf_counter() - start_s, 1e-9))
    return min(times_s)


def torch_with_threads(threads: int, device: str = "cpu") -> Work:
    """The model in torch, which takes so many threads from now on.

    Parameters
    ----------
    threads
        1 or more.
    device
        Where its tensors are.
    """
    import torch

    torch.set_num_threads(threads)
    x, first, second = (torch.from_numpy(array).to(device) for array in tensors())

    def work() -> torch.Tensor:
        with torch.no_grad():
            return torch.relu(x @ first) @ second

    return work


def torch_with_gradient(device: str) -> Work:
    """The model in torch and the gradient of its first weight.

    Parameters
    ----------
    device
        Where its tensors are.
    """
    import torch

    x, first, second = (torch.from_numpy(array).to(device) for array in tensors())
    first.requires_grad_()

    def work() -> Any:
        answer = torch.relu(x @ first) @ second
        (gradient,) = torch.autograd.grad(answer, first, torch.ones_like(answer))
        return answer.detach(), gradient

    return work


def onnx_with_threads(threads: int, provider: str = "") -> Work:
    """The model in onnxruntime, with threads of its own.

    Parameters
    ----------
    threads
        1 or more.
    provider
        The short name of an accelerator; empty: the CPU.

    Raises
    ------
    WrongResult
        onnxruntime took another one instead.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    names = [PROVIDERS[provider]] if provider else []
    x, *weights = tensors()
    session = onnxruntime.InferenceSession(
        _model(weights), options, providers=[*names, "CPUExecutionProvider"]
    )
    if session.get_providers()[: len(names)] != names:
        raise WrongResult("onnxruntime does not load it")
    return lambda: session.run(None, {"x": x})[0]


def check(answer: Any, expected: Any) -> None:
    """See that an accelerator answers as the CPU does.

    Parameters
    ----------
    answer
        The accelerator's.
    expected
        The CPU's.

    Raises
    ------
    WrongResult
        The answers differ by more than half precision explains.
    """
    if answer.shape != expected.shape:
        raise WrongResult(f"it answers with {list(answer.shape)}, expected {list(expected.shape)}")
    error = float(np.abs(answer - expected).max() / np.abs(expected).max())
    if not error <= TOLERANCE_FRAC:
        raise WrongResult(f"its answers differ from the CPU's by {error:.1%} of the largest")


def tensors() -> tuple[Any, Any, Any]:
    """The input and the two weights, always the same."""
    rng = np.random.default_rng(0)
    shapes = ((ROWS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    x, first, second = (rng.standard_normal(shape, dtype="float32") for shape in shapes)
    return x, first / np.float32(WIDTH**0.5), second / np.float32(HIDDEN**0.5)


def _model(weights: Sequence[Any]) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    sizes = {"x": [ROWS, WIDTH], "y": [ROWS, WIDTH]}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items())
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["product"]),
        helper.make_node("Relu", ["product"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "second"], ["y"]),
    ]
    names = ("first", "second")
    initial = [numpy_helper.from_array(w, n) for n, w in zip(names, weights, strict=True)]
    graph = helper.make_graph(nodes, "trial", [x], [y], initial)
    opset = [helper.make_opsetid("", 13)]
    made: bytes = helper.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()
    return made
