"""A worker of each backend against plain torch on the same processor, with each count of threads
that an agent would try.

One network (feed-forward blocks as a transformer has them) and one batch. A worker times itself, as
it does for a profile: `torch` a forward pass and a training step without update, `onnxruntime` a
forward pass. Plain torch does the same in this process, with the same count of threads, in turns
with the workers. A rate of 1 is torch's own; the worst count of threads counts. Scaling is the gain
of the most threads over one, by the gain that torch itself has. Where torch has an accelerator, a
worker on it is compared with torch on it.
"""

import select
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from potluck.bench.harness import Result

SETTINGS: Mapping[str, float] = {
    "rows": 64,
    "width": 512,
    "blocks": 4,
    "repeats": 9,
    "rounds": 7,
    "threads": 0,
    "accelerator_width": 2048,
}
GOALS = {
    "torch_rate_frac": (">=", 0.95),
    "torch_train_rate_frac": (">=", 0.95),
    "onnxruntime_rate_frac": (">=", 0.95),
    "torch_scaling_frac": (">=", 0.95),
    "onnxruntime_scaling_frac": (">=", 0.95),
}
BACKENDS = {"torch": "aten", "onnxruntime": "onnx"}
MEMORY_BYTES, ACCELERATOR_MEMORY_BYTES = 1 << 30, 4 << 30
TIMEOUT_S = 120.0

Times = dict[str, list[float]]  # what was done -> seconds, one for each round


def run(settings: Mapping[str, float]) -> Result:
    """Measure with one thread, with the most, and with what lies between.

    Parameters
    ----------
    settings
        As `SETTINGS`; `threads`: the most, 0 for all that are allowed here.
    """
    import torch

    from potluck_agent.processors.cores import candidates, cores

    before = torch.get_num_threads()
    counts = candidates(cores(), int(settings["threads"]) or None)
    try:
        found = {count: _times(count, settings) for count in counts}
        kinds = accelerators()
        on_accelerators = {kind: accelerator_times(kind, settings) for kind in kinds}
    finally:
        torch.set_num_threads(before)
    return Result(
        name="processors",
        figures=figures(found) | accelerator_figures(on_accelerators),
        settings=settings,
        goals=GOALS,
        notes=(
            f"threads: {', '.join(map(str, counts))}; accelerators: {', '.join(kinds) or 'none'}",
        ),
    )


def accelerators() -> tuple[str, ...]:
    """Those of torch that are here and answer."""
    import torch

    from potluck_agent.processors.torch_choice import kinds_here

    return tuple(kind for kind in kinds_here() if torch.get_device_module(kind).is_available())


def accelerator_figures(found: Mapping[str, Times]) -> dict[str, float]:
    """The rates of workers on accelerators by torch's own.

    Parameters
    ----------
    found
        By kind, as `accelerator_times` gives them.
    """
    return {
        f"{kind}{part}_rate_frac": _rate(times[f"own{what}"], times[f"torch{what}"])
        for kind, times in found.items()
        for part, what in (("", ""), ("_train", " train"))
    }


def figures(found: Mapping[int, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """The rates by torch's own, and how threads scale.

    Parameters
    ----------
    found
        Seconds of each round, by count of threads and by what was done: "own", "own train",
        "torch", "torch train", "onnxruntime".
    """
    rates = {
        (who, count): _rate(times[own], times[who])
        for count, times in found.items()
        for who, own in _COMPARED.items()
    }
    worst = {f"{_key(who)}_rate_frac": min(_of(rates, who)) for who in _COMPARED}
    fewest, largest = min(found), max(found)
    scaling = {
        f"{backend}_scaling_frac": rates[backend, largest] / rates[backend, fewest]
        for backend in BACKENDS
    }
    each = {f"{_key(who)}_rate_{n}_threads_frac": rate for (who, n), rate in rates.items()}
    own = {
        f"own_speedup_{count}_threads": median(found[fewest]["own"]) / median(times["own"])
        for count, times in found.items()
    }
    return {**worst, **scaling, **each, **own}


def _rate(own_s: Sequence[float], ours_s: Sequence[float]) -> float:
    return median(own / ours for own, ours in zip(own_s, ours_s, strict=True))


_COMPARED = {"torch": "own", "torch train": "own train", "onnxruntime": "own"}


def _key(who: str) -> str:
    return who.replace(" ", "_")


def _of(rates: Mapping[tuple[str, int], float], who: str) -> list[float]:
    return [rate for (name, _), rate in rates.items() if name == who]


def _times(threads: int, settings: Mapping[str, float]) -> Times:
    """Seconds of every side with that many threads, measured in turns."""
    import torch

    torch.set_num_threads(threads)
    network, x, y = _network(settings)
    repeats = int(settings["repeats"])
    own = _Own(network, x, y, repeats)
    documents = {"torch": _graph(network, x), "onnxruntime": _onnx(network, int(settings["width"]))}
    lessons = {"torch": _graph(network, x, y)}
    workers = {backend: _Worker(backend, threads) for backend in BACKENDS}

    def turn() -> dict[str, float]:
        seconds = {"own": own.forward_s(), "own train": own.train_s()}
        for backend, worker in workers.items():
            seconds[backend] = worker.forward_s(documents[backend], x.shape[0], repeats)
        seconds["torch train"] = workers["torch"].train_s(lessons["torch"], len(x), repeats)
        return seconds

    try:
        return _in_turns(turn, int(settings["rounds"]))
    finally:
        for worker in workers.values():
            worker.close()


def _in_turns(turn: Callable[[], Mapping[str, float]], n_rounds: int) -> Times:
    """Seconds of each thing that a turn does, in every round; the first is a warm-up."""
    turn()
    rounds = [turn() for _ in range(n_rounds)]
    return {what: [seconds[what] for seconds in rounds] for what in rounds[0]}


def accelerator_times(kind: str, settings: Mapping[str, float]) -> Times:
    """Seconds of torch and of a worker on an accelerator, measured in turns.

    Parameters
    ----------
    kind
        As torch names it; "cpu" is none and is measured alike.
    settings
        As `SETTINGS`.
    """
    import torch

    torch.set_num_threads(1)
    network, x, y = _network({**settings, "width": settings["accelerator_width"]})
    repeats = int(settings["repeats"])
    document, lesson = _graph(network, x), _graph(network, x, y)
    own = _Own(network.to(kind), x.to(kind), y.to(kind), repeats)
    worker = _Worker("torch", 1, "" if kind == "cpu" else f"{kind}:0")

    def turn() -> dict[str, float]:
        return {
            "own": own.forward_s(),
            "own train": own.train_s(),
            "torch": worker.forward_s(document, len(x), repeats),
            "torch train": worker.train_s(lesson, len(x), repeats),
        }

    try:
        return _in_turns(turn, int(settings["rounds"]))
    finally:
        worker.close()


class _Own:
    """Plain torch in this process, on the device of its tensors."""

    def __init__(self, network: Any, x: Any, y: Any, repeats: int) -> None:
        import torch

        self._network = network
        self._x = x
        self._y = y
        self._repeats = repeats
        self._wait = torch.get_device_module(x.device.type).synchronize

    def forward_s(self) -> float:
        import torch

        def work() -> None:
            with torch.no_grad():
                self._network(self._x)

        return self._median_s(work)

    def train_s(self) -> float:
        import torch

        def work() -> None:
            loss = torch.nn.functional.cross_entropy(self._network(self._x), self._y)
            torch.autograd.backward(loss)

        return self._median_s(work)

    def _median_s(self, work: Callable[[], None]) -> float:
        times_s = []
        for _ in range(1 + self._repeats):
            start_s = time.perf_counter()
            work()
            self._wait()
            times_s.append(time.perf_counter() - start_s)
        return median(times_s[1:])


class _Worker:
    """A real worker process with one backend."""

    def __init__(self, backend: str, threads: int, device: str = "") -> None:
        from potluck_agent.worker.launch import start
        from potluck_wire.messages import WorkerReady

        self._kind = BACKENDS[backend]
        self._link = start(
            memory_bytes=ACCELERATOR_MEMORY_BYTES if device else MEMORY_BYTES,
            threads=threads,
            inbound_bytes=1 << 20,
            outbound_bytes=1 << 20,
            backends=(backend,),
            device=device,
        )
        self._expect(WorkerReady)

    def close(self) -> None:
        self._link.kill()

    def forward_s(self, document: bytes, rows: int, repeats: int) -> float:
        measured = self._measured(document, rows, repeats, train=False)
        return float(measured.forward_s[0])

    def train_s(self, document: bytes, rows: int, repeats: int) -> float:
        measured = self._measured(document, rows, repeats, train=True)
        return float(measured.forward_s[0] + measured.backward_s[0])

    def _measured(self, document: bytes, rows: int, repeats: int, *, train: bool) -> Any:
        from potluck_wire.messages import MeasuredTask, MeasureTask

        task = MeasureTask(task="t", kind=self._kind, train=train, rows=(rows,), repeats=repeats)
        self._link.send(task, [document])
        return self._expect(MeasuredTask)

    def _expect(self, kind: type) -> Any:
        from potluck.errors import DeviceError

        end_s = time.monotonic() + TIMEOUT_S
        while (left_s := end_s - time.monotonic()) > 0 and not self._link.closed:
            writers = [self._link.socket] if self._link.wants_write else []
            select.select([self._link.socket], writers, [], left_s)
            self._link.flush()
            for message, _ in self._link.receive():
                if isinstance(message, kind):
                    return message
                raise DeviceError(f"its worker said {message}, expected {kind.__name__}.")
        raise DeviceError("its worker does not answer.")


def _network(settings: Mapping[str, float]) -> tuple[Any, Any, Any]:
    """Feed-forward blocks, a batch and its classes."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    width = int(settings["width"])
    blocks = [
        layer
        for _ in range(int(settings["blocks"]))
        for layer in (nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
    ]
    rows = int(settings["rows"])
    return nn.Sequential(*blocks), torch.randn(rows, width), torch.randint(width, (rows,))


def _graph(network: Any, x: Any, y: Any = None) -> bytes:
    """The network as a segment of torch, with its loss where there are classes."""
    import torch

    from potluck.graph.trace import trace
    from potluck_wire.segment import dumps

    names = ("x",) if y is None else ("x", "y")
    loss = None if y is None else torch.nn.functional.cross_entropy
    targets = () if y is None else (y,)
    return dumps(trace(network, (x,), input_names=names, loss=loss, targets=targets).graph)


def _onnx(network: Any, width: int) -> bytes:
    """The same network as an ONNX model; its weights have a shape and no data, as for a profile."""
    from onnx import TensorProto, helper

    nodes = []
    weights = []
    value = "x"
    for index, layer in enumerate(network):
        result = f"v{index}" if index + 1 < len(network) else "y"
        if hasattr(layer, "weight"):
            names = [f"w{index}", f"b{index}"]
            weights += [
                TensorProto(name=name, dims=tensor.shape, data_type=TensorProto.FLOAT)
                for name, tensor in zip(names, (layer.weight, layer.bias), strict=True)
            ]
            nodes.append(helper.make_node("Gemm", [value, *names], [result], transB=1))
        else:
            nodes.append(helper.make_node("Relu", [value], [result]))
        value = result
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name in ("x", "y")
    )
    graph = helper.make_graph(nodes, "blocks", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()
    return model
