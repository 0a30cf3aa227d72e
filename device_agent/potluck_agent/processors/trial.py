"""Trials, each in a process of its own with a worker's bounds: one that crashes, hangs or talks
nonsense is an answer like any other.
"""

import select
import time
from dataclasses import replace

from potluck_agent.worker.launch import WorkerLink, start_trial
from potluck_wire.errors import WireError
from potluck_wire.messages import ProcessorTried, TryProcessor
from potluck_wire.processors import MAX_REASON, PROVIDERS, line
from potluck_wire.statement import MAX_NUMBER, MIN_RATE

# Slow devices load torch for long, and an accelerator may compile its kernels meanwhile.
PATIENCE_S = 60.0


def attempt(asked: TryProcessor, patience_s: float = PATIENCE_S) -> ProcessorTried:
    """What a throw-away worker answers; a `reason` where it does not.

    Parameters
    ----------
    asked
        What to try.
    patience_s
        It hangs if it is silent for longer.
    """
    try:
        link = start_trial(asked)
    except OSError as error:
        return _failed(f"its trial could not be started: {error}")
    try:
        return _answer(link, asked, patience_s)
    except WireError as error:
        return _failed(f"its trial broke the protocol: {error}")
    finally:
        link.kill()


def _answer(link: WorkerLink, asked: TryProcessor, patience_s: float) -> ProcessorTried:
    deadline_s = time.monotonic() + patience_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        writers = [link.socket] if link.wants_write else []
        select.select([link.socket], writers, [], left_s)
        link.flush()
        link.listen()
        for message, _ in link.receive():
            if isinstance(message, ProcessorTried) and _fits(message, asked):
                return replace(message, reason=line(message.reason, MAX_REASON))
            return _failed("its trial answered what nobody asked")
        if link.closed:
            return _failed(link.exit_reason()[1].replace("the worker", "its trial"))
    return _failed(f"its trial did not end within {patience_s:g} s")


def _fits(answer: ProcessorTried, asked: TryProcessor) -> bool:
    """As many rates as were asked for, or a reason, fit for the statement; accelerators that we
    know, each once.
    """
    rates = answer.flops_per_s
    n_rates = 0 if answer.reason else 1 if asked.provider else len(asked.threads)
    return (
        len(rates) == n_rates
        and all(MIN_RATE <= rate <= MAX_NUMBER for rate in rates)
        and len(set(answer.providers)) == len(answer.providers)
        and set(answer.providers) <= set(PROVIDERS)
    )


def _failed(reason: str) -> ProcessorTried:
    return ProcessorTried(reason=line(reason, MAX_REASON))
