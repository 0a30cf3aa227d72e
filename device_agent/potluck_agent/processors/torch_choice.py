"""Which accelerator torch computes on: the fastest that works, if it is faster than the CPU."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from potluck_agent.worker.landlock import nodes_of
from potluck_wire.messages import ProcessorTried, TryProcessor
from potluck_wire.processors import CPU, TORCH_KINDS, row

USE = "for torch models"
KINDS_OF = {"darwin": ("mps",), "win32": ("cuda", "xpu")}  # where no file shows an accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChoice:
    """`device`: torch's name of what is computed on, empty for the CPU, with `memory_bytes` for
    tensors. `present`: all devices, and `rows` of the statement's `processors`.
    """

    device: str = ""
    memory_bytes: int = 0
    present: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()


def kinds_here() -> tuple[str, ...]:
    """Kinds of accelerators that this machine may have; torch itself is not asked."""
    if sys.platform != "linux":
        return KINDS_OF.get(sys.platform, ())
    return tuple(kind for kind in TORCH_KINDS if nodes_of((kind,)))


def is_meant(named: str, device: str) -> bool:
    """Whether the owner's `--device` means this one: all of a kind, or it alone.

    Parameters
    ----------
    named
        As given, as `cuda` or `cuda:1`; empty where nothing is said.
    device
        As torch names it.
    """
    return named in ("", device, device.partition(":")[0])


def find(
    named: str,
    kinds: Sequence[str],
    trial: TryProcessor,
    cpu_rate: Callable[[], float],
    attempt: Callable[[TryProcessor], ProcessorTried],
) -> TorchChoice:
    """The fastest that works; one that fails is left out with its reason.

    Parameters
    ----------
    named
        The owner's `--device`.
    kinds
        That may be here.
    trial
        What all trials have in common.
    cpu_rate
        Called where it matters: flop per second of torch on the CPU.
    attempt
        Called with a trial: its answer.
    """
    if named == CPU:
        return TorchChoice()
    listed = {kind: attempt(replace(trial, device=kind)) for kind in kinds}
    silent = [_left_out(kind, kind, answer) for kind, answer in listed.items() if answer.reason]
    present = tuple(device for answer in listed.values() for device in answer.devices)
    tried = {
        device: attempt(replace(trial, device=device))
        for device in present
        if is_meant(named, device)
    }
    rates = {
        device: answer.flops_per_s[0] for device, answer in tried.items() if answer.flops_per_s
    }
    best = max(rates, key=rates.__getitem__, default="")
    if best and not named and rates[best] <= cpu_rate():
        best = ""
    rows = [_row(device, tried.get(device), best, named) for device in present]
    memory_bytes = tried[best].memory_bytes if best else 0
    return TorchChoice(
        device=best, memory_bytes=memory_bytes, present=present, rows=(*rows, *silent)
    )


def _row(device: str, answer: ProcessorTried | None, best: str, named: str) -> dict[str, Any]:
    kind = device.partition(":")[0]
    if answer is None:
        return row(device, kind, used=False, reason=f"{named} was asked for")
    if answer.reason:
        return _left_out(device, kind, answer)
    return row(
        f"{answer.name or kind}, {device}",
        kind,
        memory_bytes=answer.memory_bytes,
        dtypes=answer.dtypes,
        flops_per_s=answer.flops_per_s[0],
        used=device == best,
        reason=USE if device == best else f"torch is no faster there than on {best or 'the CPU'}",
    )


def _left_out(name: str, kind: str, answer: ProcessorTried) -> dict[str, Any]:
    return row(name, kind, used=False, reason=f"torch: {answer.reason}")
