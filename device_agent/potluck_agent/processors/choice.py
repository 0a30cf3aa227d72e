"""What the worker computes on: the fastest that works, found by trials, unless its owner says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck_agent.errors import AgentError
from potluck_agent.processors import torch_choice
from potluck_agent.processors.cores import LIMIT, Cores, candidates, limit_of
from potluck_wire.install_hints import install
from potluck_wire.messages import ProcessorTried, TryProcessor
from potluck_wire.processors import CPU, PROVIDERS, row
from potluck_wire.tensors import DTYPES

BUDGET_S = 0.8  # of a trial, its libraries not counted
# What more threads have to gain against fewer ones, which leave more to the owner.
GAIN_FRAC = 1.05
USE = "for ONNX models"
EXTRAS = {"onnxruntime": "onnx"}  # where potluck calls what brings a library otherwise

Attempt = Callable[[TryProcessor], ProcessorTried]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChoice:
    """What the owner has said: a count of threads, a device, which backends; None and "" where
    nothing. `is_emulated`: it plays another device, beside others on this machine.
    """

    threads: int | None = None
    device: str = ""
    backends: tuple[str, ...] = ()
    memory_bytes: int = 0
    is_emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the worker computes with, and `rows` of the statement's `processors`.

    `provider` is onnxruntime's accelerator and `device` torch's, which has `device_bytes` for
    tensors; empty: the CPU.
    """

    threads: int = 1
    provider: str = ""
    device: str = ""
    device_bytes: int = 0
    rows: tuple[Mapping[str, Any], ...] = ()


def choose(
    owner: OwnerChoice,
    found: Cores,
    name: str,
    *,
    backends: Sequence[str],
    environment: Mapping[str, str],
    attempt: Attempt,
    kinds: Sequence[str] = (),
) -> Choice:
    """The fastest that works.

    Parameters
    ----------
    owner
        What the owner has said.
    found
        The cores of this machine.
    name
        Of its processor.
    backends
        That are there; without any, nothing computes here.
    environment
        Of this process: `OMP_NUM_THREADS` is a limit.
    attempt
        Called with a trial: its answer.
    kinds
        Of accelerators of torch that may be here.

    Raises
    ------
    AgentError
        The owner has named an accelerator, or a library to compute with, that is not there.
    """
    _check_backends(owner.backends, backends)
    if not backends:
        return Choice()
    limit = limit_of(environment)
    counts = _counts(owner, found, limit)
    survey = _survey(owner, counts, "onnxruntime" in backends, attempt)
    threads = fastest(counts, survey.flops_per_s) if survey.flops_per_s else counts[0]
    is_bound = limit is not None and limit < found.allowed
    cpu = row(
        name,
        CPU,
        memory_bytes=owner.memory_bytes,
        dtypes=[each for each in DTYPES if each != "bfloat16" or "torch" in backends],
        flops_per_s=survey.flops_per_s[counts.index(threads)] if survey.flops_per_s else None,
        threads=threads,
        reason=_reason(owner, counts, survey, limit if is_bound else None),
    )
    torch_kinds = kinds if "torch" in backends and not owner.is_emulated else ()
    found_rate = cpu["flops_per_s"] if "torch" in backends else None
    fast = torch_choice.find(
        owner.device,
        torch_kinds,
        _trial(owner),
        lambda: found_rate or _cpu_rate(owner, threads, "torch", attempt),
        attempt,
    )
    _check_device(owner.device, survey, fast)
    provider, others = _accelerators(owner, survey.providers, threads, attempt)
    return Choice(
        threads=threads,
        provider=provider,
        device=fast.device,
        device_bytes=fast.memory_bytes,
        rows=(cpu, *fast.rows, *others),
    )


def _counts(owner: OwnerChoice, found: Cores, limit: int | None) -> tuple[int, ...]:
    """Of threads, to choose from; the first where no trial says more."""
    if owner.threads is not None:
        return (owner.threads,)
    return (1,) if owner.is_emulated else candidates(found, limit)


def _survey(
    owner: OwnerChoice, counts: tuple[int, ...], has_onnxruntime: bool, attempt: Attempt
) -> ProcessorTried:
    """The rates of these counts of threads, and which accelerators onnxruntime offers; nothing
    where nothing is to be chosen.
    """
    seeks_accelerator = has_onnxruntime and not owner.is_emulated and owner.device != CPU
    if len(counts) == 1 and not seeks_accelerator:
        return ProcessorTried()
    threads = counts if len(counts) > 1 else ()
    return attempt(_trial(owner, threads=threads, backends=owner.backends))


def _reason(
    owner: OwnerChoice, counts: Sequence[int], survey: ProcessorTried, limit: int | None
) -> str:
    """Why so many threads."""
    if owner.threads is not None:
        return "as told"
    if owner.is_emulated:
        return "it plays another device"
    bound = f" ({LIMIT}={limit})" if limit is not None else ""
    if len(counts) == 1:
        return f"no more are allowed{bound}"
    if survey.reason:
        return f"a trial of {_listed(counts)} failed: {survey.reason}"
    return f"fastest of {_listed(counts)}{bound}"


def _check_backends(named: Sequence[str], present: Sequence[str]) -> None:
    """Raise AgentError where the owner has named a library that is not there."""
    for name in named:
        if name not in present:
            hint = install(EXTRAS.get(name, name))
            raise AgentError(
                f"--backends {','.join(named)}: {name}, or what it needs, is not installed here. "
                f"Run {hint}, or name another."
            )


def _check_device(device: str, survey: ProcessorTried, fast: "torch_choice.TorchChoice") -> None:
    """Raise AgentError where neither onnxruntime nor torch has what the owner has named."""
    if device in ("", CPU) or _as_provider(device) in survey.providers:
        return
    if any(torch_choice.is_meant(device, each) for each in fast.present):
        return
    names = dict.fromkeys((CPU, *survey.providers, *fast.present))
    reasons = [str(row["reason"]) for row in fast.rows if not fast.present]
    why = survey.reason or "; ".join((f"there are {', '.join(names)}", *reasons))
    raise AgentError(f"--device {device}: neither onnxruntime nor torch offers it here; {why}.")


def _as_provider(device: str) -> str:
    """onnxruntime's name of it: it takes the first one of a kind."""
    return device.removesuffix(":0")


def _cpu_rate(owner: OwnerChoice, threads: int, backend: str, attempt: Attempt) -> float:
    tried = attempt(_trial(owner, threads=(threads,), backends=(backend,)))
    return max(tried.flops_per_s, default=0.0)


def fastest(counts: Sequence[int], rates: Sequence[float]) -> int:
    """The count of threads with the highest rate; of those about as fast, the smallest.

    >>> fastest((1, 4, 8), (50.0, 180.0, 184.0))
    4

    Parameters
    ----------
    counts
        The smallest first.
    rates
        Of each.
    """
    best = max(rates)
    return next(n for n, rate in zip(counts, rates, strict=True) if rate * GAIN_FRAC >= best)


def _accelerators(
    owner: OwnerChoice, providers: Sequence[str], threads: int, attempt: Attempt
) -> tuple[str, list[dict[str, Any]]]:
    """The one that ONNX models are computed on, if any is better than the CPU, and a row for
    each.
    """
    tried = {
        name: attempt(_trial(owner, provider=name))
        for name in providers
        if _as_provider(owner.device) in ("", name)
    }
    rates = {name: one.flops_per_s[0] for name, one in tried.items() if one.flops_per_s}
    best = max(rates, key=rates.__getitem__, default="")
    if best and not owner.device:
        best = best if rates[best] > _cpu_rate(owner, threads, "onnxruntime", attempt) else ""
    rows = []
    for name in providers:
        if name == best:
            rows.append(row(PROVIDERS[name], name, flops_per_s=rates[name], reason=USE))
        elif name not in tried:
            rows.append(_left_out(name, f"{owner.device} was asked for"))
        else:
            reason = tried[name].reason or f"no faster than {best or 'the CPU'}"
            rows.append(_left_out(name, reason, rates.get(name)))
    return best, rows


def _trial(
    owner: OwnerChoice,
    *,
    provider: str = "",
    threads: tuple[int, ...] = (),
    backends: tuple[str, ...] = (),
) -> TryProcessor:
    return TryProcessor(
        provider=provider,
        threads=threads,
        memory_bytes=owner.memory_bytes,
        budget_s=BUDGET_S,
        backends=backends,
    )


def _left_out(name: str, reason: str, rate: float | None = None) -> dict[str, Any]:
    return row(PROVIDERS[name], name, flops_per_s=rate, used=False, reason=reason)


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
