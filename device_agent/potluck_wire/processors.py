"""What a device computes with: one row for each processor in its capability statement, and the same
in words. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CPU = "cpu"
# short name -> an execution provider of onnxruntime
PROVIDERS: dict[str, str] = {
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "directml": "DmlExecutionProvider",
}
# where torch computes beside the CPU
TORCH_KINDS = ("cuda", "xpu", "mps")
KEYS = (*("name", "kind", "memory_bytes", "dtypes", "flops_per_s", "threads"), *("used", "reason"))
MAX_PROCESSORS = 64
MAX_NAME = 200  # characters
MAX_KIND = 40
MAX_REASON = 400


def row(
    name: str,
    kind: str,
    *,
    memory_bytes: int | None = None,
    dtypes: Sequence[str] = (),
    flops_per_s: float | None = None,
    threads: int | None = None,
    used: bool = True,
    reason: str = "",
) -> dict[str, Any]:
    """One row of the statement's `processors`.

    Parameters
    ----------
    name
        For people, without control characters.
    kind
        `cpu`, a key of `PROVIDERS`, or one of `TORCH_KINDS`.
    memory_bytes
        What it has for tensors; None where that is not known.
    dtypes
        Element types that it computes with.
    flops_per_s
        As measured when the agent began; None where it was not.
    threads
        That the worker computes with; None but for the CPU.
    used
        Whether the worker computes on it.
    reason
        Why it computes so, or why it is left out.
    """
    name, reason = line(name, MAX_NAME), line(reason, MAX_REASON)
    cells = (name, kind, memory_bytes, list(dtypes), flops_per_s, threads, used, reason)
    return dict(zip(KEYS, cells, strict=True))


def is_line(value: Any, max_chars: int) -> bool:
    """Whether this is a text of one line that a terminal may show."""
    return type(value) is str and len(value) <= max_chars and value.isprintable()


def line(text: str, max_chars: int) -> str:
    """The first line of a text, as far as `is_line` takes it."""
    first = (text.strip().splitlines() or [""])[0]
    return "".join(filter(str.isprintable, first))[:max_chars]


def words(processors: Sequence[Mapping[str, Any]], cores: int | None) -> Iterator[str]:
    """What a device computes with, a line for each processor.

    >>> list(words([row("i5", "cpu", threads=4, reason="fastest of 1, 4, 8")], 8))
    ['i5 (cpu): 4 of 8 threads: fastest of 1, 4, 8']
    >>> list(words([row("GPU 0", "cuda", used=False, reason="its driver is too old")], 8))
    ['GPU 0 (cuda) is left out: its driver is too old']

    Parameters
    ----------
    processors
        As the capability statement has them.
    cores
        The statement's: logical ones of the machine.
    """
    for entry in processors:
        name = f"{entry.get('name')} ({entry.get('kind')})"
        reason = entry.get("reason") or ""
        if entry.get("used") is False:
            yield f"{name} is left out" + (f": {reason}" if reason else "")
            continue
        facts = [_threads(entry.get("threads"), cores), reason, _rate(entry.get("flops_per_s"))]
        yield ": ".join([name, *filter(None, facts)])


def summary(processors: Sequence[Mapping[str, Any]]) -> str:
    """What a device computes on, in a few words.

    >>> summary([row("i5", "cpu", threads=4), row("T4", "cuda"), row("x", "xnnpack", used=False)])
    '4 threads, cuda'

    Parameters
    ----------
    processors
        As the capability statement has them.
    """
    used = [entry for entry in processors if entry.get("used") is not False]
    return ", ".join(_threads(entry.get("threads"), None) or str(entry["kind"]) for entry in used)


def _threads(threads: int | None, cores: int | None) -> str:
    if threads is None:
        return ""
    if cores is None:
        return f"{threads} thread{'s' * (threads != 1)}"
    return f"{threads} of {cores} thread{'s' * (cores != 1)}"


def _rate(flops_per_s: float | None) -> str:
    return "" if flops_per_s is None else f"{flops_per_s / 1e9:,.0f} GFLOP/s"
