"""What a device reports, as an error with the device's name, the cause and the next step."""

from collections.abc import Sequence

from potluck.errors import (
    DeviceGone,
    IdentityChanged,
    NotPaired,
    NotServed,
    OutOfMemory,
    PlanError,
    PotluckError,
    ProtocolError,
    RequestFailed,
    WorkerFailed,
)
from potluck.errors import Refused as RefusedError
from potluck.sanitized_text import harmless
from potluck_wire.errors import WireError
from potluck_wire.messages import (
    ASK_CODES,
    MESSAGES,
    AskEnded,
    Execute,
    Failed,
    FailureCause,
    Message,
    RefusalCode,
    Refused,
    Rejected,
    Value,
)

# why a device that was asked for a service has its model no more
_MODEL_GONE = frozenset(
    {
        RefusalCode.NOT_GRANTED,
        RefusalCode.UNKNOWN_RUN,
        FailureCause.CRASHED,
        FailureCause.HUNG,
        FailureCause.MEMORY,
        FailureCause.CANCELLED,
        FailureCause.INTERNAL,
    }
)
_CAUSES = {
    FailureCause.CRASHED: "its worker crashed",
    FailureCause.HUNG: "its worker stopped making progress",
    FailureCause.MEMORY: "its worker ran out of memory",
    FailureCause.INPUT: "values of a wrong shape or type came in",
    FailureCause.ARITHMETIC: "an operator failed",
    FailureCause.PEER_LOST: "it lost the connection to another device",
    FailureCause.CANCELLED: "it was cancelled",
    FailureCause.INTERNAL: "something went wrong inside the agent",
}


def clean(text: str) -> str:
    """A peer's text within an error: harmless, and not too long."""
    return harmless(text)[:400].strip()


def gone(device: str) -> DeviceGone:
    """No session with it (any more)."""
    return DeviceGone(
        "it is not connected.", device=device, next_step="Is its agent running? See home.devices."
    )


def was_away(device: str) -> DeviceGone:
    """It has another session than when it got the plan: its agent may have been started anew."""
    return DeviceGone(
        "it was away for a while, and may have forgotten the run.",
        device=device,
        next_step="Deploy again.",
    )


def unreachable(device: str, address: str) -> DeviceGone:
    """Nobody answered there."""
    return DeviceGone(
        f"nobody answers at {address}.",
        device="" if device == address else device,
        next_step="Start its agent, or run `potluck doctor`.",
    )


def cut_off(device: str, address: str) -> DeviceGone:
    """A connection that stood is gone."""
    return DeviceGone(
        f"the connection to {address} broke.",
        device=device,
        next_step="Was its agent stopped? Deploy again.",
    )


def unresolved(device: str, host: str) -> DeviceGone:
    """No device of this network has that name."""
    return DeviceGone(
        f"the name {host!r} is not known in this network.",
        device="" if device.partition(":")[0] == host else device,
        next_step="Is it spelt right? `potluck devices` lists who announces itself; or give an "
        "address: 192.168.1.7.",
    )


def broke(device: str, error: WireError) -> ProtocolError:
    """What it says does not hold, or nobody asked for it."""
    return ProtocolError(
        f"it broke the protocol ({clean(str(error))}).",
        device=device,
        next_step="Update its agent; if that does not help, do not trust it.",
    )


def silent(device: str, silent_s: float, seen_by: str = "") -> DeviceGone:
    """Its pulse stopped: what it took part in has ended by this, also where it comes back.

    `seen_by`: another device that still reaches it.
    """
    others = f", though {seen_by} reaches it" if seen_by else ""
    return DeviceGone(
        f"no sign of life for {silent_s:.1f} s{others}, so that what it took part in has ended.",
        device=device,
        next_step=(
            "What is between this computer and it? "
            if seen_by
            else "Is it on, and in the network? "
        )
        + "Deploy again when home.devices shows it as ready, or without it.",
    )


def deaf(device: str, seconds: float) -> DeviceGone:
    """It is heard, and does not hear: what it took part in has ended by this."""
    return DeviceGone(
        f"messages come from it, but it has answered nothing for {seconds:.0f} s: the way there is "
        "broken, so that what it took part in has ended.",
        device=device,
        next_step="What is between this computer and it? Deploy again when home.devices shows it "
        "as ready, or without it.",
    )


def hung(device: str, hung_s: float, others: Sequence[str] = ()) -> WorkerFailed:
    """It answers, is busy, and gets nothing done; so do `others`, of which one may be the cause."""
    they = f", nor has that of {' or '.join(others)}, which it may wait for" if others else ""
    return WorkerFailed(
        f"its worker has made no progress for {hung_s:.0f} s{they}.",
        device=device,
        cause=FailureCause.HUNG,
        instruction=-1,
    )


def owing(device: str, step: int, names: tuple[str, ...], owes_s: float) -> ProtocolError:
    """It says that it is done, and a value that it has to send does not come; or it has nothing to
    do any more and does not say that it is done.
    """
    missing = ", ".join(repr(name) for name in names)
    return ProtocolError(
        f"it said that step {step} is done, but {missing} did not come within {owes_s:.0f} s."
        if missing
        else f"it has nothing to do, but did not say within {owes_s:.0f} s that step {step} is "
        "done.",
        device=device,
        next_step="Restart its agent, or deploy without it.",
    )


def dropped(device: str = "") -> PlanError:
    """What was executed or asked under a plan that is over."""
    return PlanError("the plan was dropped while it was in use.", device=device)


def not_paired(device: str) -> NotPaired:
    """It refused our key."""
    return NotPaired(
        "it does not know this notebook.",
        device=device,
        next_step="Run `potluck agent pair` on it, then home.pair(name, code).",
    )


def identity_changed(device: str, address: str) -> IdentityChanged:
    """Something answers there that does not have its key."""
    return IdentityChanged(
        f"whoever answers at {address} does not have the key that was paired.",
        device=device,
        next_step="If you reinstalled it, forget it (`potluck forget`) and pair again; otherwise "
        "do not trust it.",
    )


def ended(device: str, message: Refused) -> DeviceGone:
    """It had a session with us, and knows nothing of it any more."""
    return DeviceGone(
        f"it ended the session ({clean(message.code)}): {clean(message.text)}",
        device=device,
        next_step="See home.devices for whether it is back, and `potluck agent status` on it.",
    )


def mute(device: str, request: Message, waited_s: float) -> DeviceGone:
    """It lives, and does not answer."""
    return DeviceGone(
        f"it did not answer {type(request).__name__} within {waited_s:.0f} s.",
        device=device,
        next_step="Restart its agent, or go on without it.",
    )


def refused(device: str, message: Refused) -> PotluckError:
    """A request was not carried out."""
    entry = MESSAGES.get(message.about)
    what = entry.type.__name__ if entry else f"message {message.about}"
    text = clean(message.text)
    if message.code == RefusalCode.VERSION:
        return ProtocolError(
            f"it speaks another version of the protocol: {text}", device=device, code=message.code
        )
    if message.code == RefusalCode.NOT_PAIRED and what != Execute.__name__:
        return not_paired(device)
    if message.code == RefusalCode.MEMORY:
        return _too_large(device, message, text)
    if message.code == RefusalCode.LEAVING:
        return RefusedError(
            f"{text.rstrip('.')}.",
            device=device,
            next_step="Use other devices, or change the rules that its agent was started with.",
            code=message.code,
        )
    if message.code == RefusalCode.BACKEND and what == "Hello":
        return _without_worker(device, text)
    return RefusedError(
        f"it declined {what} ({clean(message.code)}): {text}",
        device=device,
        code=message.code,
        about=what,
    )


def _without_worker(device: str, text: str) -> RefusedError:
    """A device that is there and has no session with us: it has nothing to compute with, or cannot
    start that.
    """
    _, lacks, what = text.partition("computes nothing: ")
    sentence, _, next_step = f"it {lacks}{what}".partition(". ") if lacks else (text, "", "")
    return RefusedError(
        f"{sentence.removesuffix('.')}.",
        device=device,
        next_step=next_step,
        code=RefusalCode.BACKEND,
    )


_LESS = (
    "Give it fewer layers or rows, close another run that it is in, here or in another notebook, "
    "or raise its --memory."
)


def sizes(needed: int, available: int) -> tuple[str, str]:
    """Both in MiB, and to the byte where they would read alike.

    >>> sizes(3 * 2**20, 2**20), sizes(2**20 + 1, 2**20)
    (('3.0 MiB', '1.0 MiB'), ('1048577 bytes', '1048576 bytes'))
    """
    in_mib = f"{needed / 2**20:.1f} MiB", f"{available / 2**20:.1f} MiB"
    return in_mib if in_mib[0] != in_mib[1] else (f"{needed} bytes", f"{available} bytes")


def _too_large(device: str, message: Refused, text: str) -> OutOfMemory:
    """A plan larger than the device's memory, told in numbers.

    Or in words: a layer for which its worker has no room.

    Agents before 1.6 tell only words.
    """
    needed, available = message.needed_bytes, message.available_bytes
    if not needed:
        return OutOfMemory(
            f"it has too little memory: {text.rstrip('.')}.", device=device, next_step=_LESS
        )
    much, little = sizes(needed, available)
    return OutOfMemory(
        f"the plan does not fit: {much} needed, {little} available.",
        device=device,
        next_step=_LESS,
        needed_bytes=needed,
        available_bytes=available,
    )


def rejected(device: str, value: Value, message: Rejected) -> PotluckError:
    """A value was not taken."""
    text = (
        f"it did not take the value {value.name!r} ({clean(message.code)}): {clean(message.text)}"
    )
    if message.code == RefusalCode.MEMORY:
        return OutOfMemory(text, device=device, needed_bytes=value.nbytes)
    return RefusedError(text, device=device, code=message.code)


def not_answered(device: str, message: AskEnded) -> PotluckError:
    """A service did not answer a request that this device was asked for."""
    text = clean(message.text).rstrip(".") or message.code
    if message.code in (FailureCause.INPUT, FailureCause.ARITHMETIC):
        step = "Other requests are answered: look at the inputs of this one."
        return RequestFailed(f"{text}.", device=device, next_step=step, cause=message.code)
    if message.code in _MODEL_GONE and message.path == (device,):  # it says so of itself
        return WorkerFailed(f"{text}.", device=device, cause=message.code)
    return NotServed(
        f"{device}: {text}.",
        next_step="Ask again, or another device.",
        reason=message.code if message.code in ASK_CODES else RefusalCode.STATE,
        path=message.path,
        limit_s=None,
        soonest_s=None,
    )


def unanswered(device: str) -> DeviceGone:
    """It said nothing about a request, though its time is over."""
    return DeviceGone("it did not answer a request in time.", device=device)


def failed(
    device: str, message: Failed, memory_bytes: int | None = None, *, alone: bool = False
) -> PotluckError:
    """An execution ended badly, on a device that may use so much memory.

    `alone`: a request, and nothing else.
    """
    cause = _CAUSES.get(message.cause, clean(message.cause))
    where = (
        f" at instruction {message.instruction} of {clean(message.program)}"
        if message.instruction >= 0
        else ""
    )
    text = (
        f"{cause}{where}, step {message.step}: "
        f"{clean(message.text).rstrip('.') or 'no more is known'}."
    )
    if alone:
        next_step = "Other requests are answered: look at the inputs of this one."
        return RequestFailed(
            text,
            device=device,
            next_step=next_step,
            cause=message.cause,
            instruction=message.instruction,
        )
    if message.cause == FailureCause.MEMORY:
        return OutOfMemory(
            text if memory_bytes is None else f"{text} It may use {memory_bytes / 2**20:.1f} MiB.",
            device=device,
            next_step=_LESS,
            cause=message.cause,
            available_bytes=memory_bytes,
        )
    if message.cause == FailureCause.PEER_LOST:
        return DeviceGone(text, device=device, next_step="Check the network between the devices.")
    return WorkerFailed(text, device=device, cause=message.cause, instruction=message.instruction)
