"""Trials, each in a process of its own with a worker's bounds: one that crashes, hangs or talks
nonsense is an answer like any other.
"""

import select
import time
from dataclasses import replace

from potluck_agent.worker.launch import WorkerLink, start_trial
from potluck_wire.errors import WireError
from potluck_wire.messages import ProcessorTried, TryProcessor
from potluck_wire.processors import MAX_NAME, MAX_REASON, PROVIDERS, TORCH_KINDS, is_line, line
from potluck_wire.statement import MAX_NUMBER, MIN_RATE
from potluck_wire.tensors import DTYPES

# Slow devices load torch for long, and an accelerator may compile its kernels meanwhile.
TIMEOUT_S = 60.0
MAX_DEVICES = 16  # of one kind


def attempt(trial: TryProcessor, timeout_s: float = TIMEOUT_S) -> ProcessorTried:
    """What a throw-away worker answers; a `reason` where it does not.

    Parameters
    ----------
    trial
        What to try.
    timeout_s
        It hangs if it is silent for longer.
    """
    try:
        link = start_trial(trial)
    except OSError as error:
        return _failed(f"its trial could not be started: {error}")
    try:
        return _answer(link, trial, timeout_s)
    except WireError as error:
        return _failed(f"its trial broke the protocol: {error}")
    finally:
        link.kill()


def _answer(link: WorkerLink, trial: TryProcessor, timeout_s: float) -> ProcessorTried:
    deadline_s = time.monotonic() + timeout_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        writers = [link.socket] if link.wants_write else []
        select.select([link.socket], writers, [], left_s)
        link.flush()
        link.listen()
        for message, _ in link.receive():
            if isinstance(message, ProcessorTried) and _fits(message, trial):
                return replace(message, reason=line(message.reason, MAX_REASON))
            return _failed("its trial answered what nobody asked")
        if link.closed:
            return _failed(link.exit_reason()[1].replace("the worker", "its trial"))
    return _failed(f"its trial did not end within {timeout_s:g} s")


def _fits(answer: ProcessorTried, trial: TryProcessor) -> bool:
    """As many rates as were asked for, or a reason, fit for the statement; accelerators that we
    know, each once.
    """
    rates = answer.flops_per_s
    is_listing = trial.device in TORCH_KINDS
    n_tried = 1 if trial.provider or trial.device else len(trial.threads)
    n_rates = 0 if answer.reason or is_listing else n_tried
    return (
        len(rates) == n_rates
        and all(MIN_RATE <= rate <= MAX_NUMBER for rate in rates)
        and len(set(answer.providers)) == len(answer.providers)
        and set(answer.providers) <= set(PROVIDERS)
        and _fits_torch(answer, trial)
    )


def _fits_torch(answer: ProcessorTried, trial: TryProcessor) -> bool:
    """Devices of the kind that was asked for, few enough for the statement; a size, element types
    and a name that it takes.
    """
    known = {f"{trial.device}:{index}" for index in range(MAX_DEVICES)}
    return (
        len(set(answer.devices)) == len(answer.devices)
        and set(answer.devices) <= known
        and 0 <= answer.memory_bytes <= MAX_NUMBER
        and set(answer.dtypes) <= set(DTYPES)
        and is_line(answer.name, MAX_NAME)
    )


def _failed(reason: str) -> ProcessorTried:
    return ProcessorTried(reason=line(reason, MAX_REASON))
