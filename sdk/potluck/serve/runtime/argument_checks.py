"""What may be asked of `home.serve`: checked before anything is measured. Pure."""

from potluck.errors import UserError
from potluck.serve.scheduling.records import Frequency, Latency, Slo, check_count, check_number

MAX_NAME = 64
EXTRA = "._-"


def check_serving(name: str, slo: object, priority: int, max_queue: int, per_s: float) -> None:
    """Refuse what no service can be made of.

    Parameters
    ----------
    name
        Of the service: it stands in addresses and in metrics.
    slo
        `Latency` or `Frequency`.
    priority
        Any whole number.
    max_queue
        Rows that may wait.
    per_s
        Requests per second; 0: not known.

    Raises
    ------
    UserError
        Names what is wrong.
    """
    check_service_name(name)
    if not isinstance(slo, Latency | Frequency):
        raise UserError(
            f"a limit is potluck.Latency(seconds) or potluck.Frequency(fps), got {slo!r}.",
            next_step='home.serve(model, name="birds", slo=potluck.Latency(0.2))',
        )
    check_priority(priority)
    check_count("max_queue", max_queue)
    check_number("per_s", per_s, zero=True)


def need_frequency(name: str, slo: Slo) -> Frequency:
    """The limit of a service that takes streams.

    Parameters
    ----------
    name
        Of the service.
    slo
        Its limit.

    Raises
    ------
    UserError
        It takes none.
    """
    if not isinstance(slo, Frequency):
        raise UserError(
            f"{name} answers single requests, with a limit for each.",
            next_step="Serve it with slo=potluck.Frequency(fps=30).",
        )
    return slo


def own_limit_s(limit_s: float | None, most_s: float) -> float:
    """The limit of one request.

    Parameters
    ----------
    limit_s
        Its own, as it was asked for; None: that of the service.
    most_s
        The service's.

    Raises
    ------
    UserError
        That is no number of seconds.

    Examples
    --------
    >>> own_limit_s(None, 2.0), own_limit_s(0.5, 2.0), own_limit_s(0, 2.0), own_limit_s(9, 2.0)
    (2.0, 0.5, 0, 2.0)
    """
    if limit_s is None:
        return most_s
    check_number("limit_s", limit_s, zero=True)
    return min(most_s, limit_s)


def stream_fps(slo: Frequency, fps: float | None) -> float:
    """The frames per second of a stream.

    Parameters
    ----------
    slo
        Of its service.
    fps
        As they were asked for; None: those of the service.

    Raises
    ------
    UserError
        That is no number above zero.
    """
    if fps is None:
        return slo.fps
    check_number("fps", fps)
    return fps


def check_text_serving(name: str, token_s: float, priority: int, max_queue: int) -> None:
    """Refuse what no service of texts can be made of.

    Parameters
    ----------
    name
        Of the service.
    token_s
        Seconds that a token may take; 0: any.
    priority
        Any whole number.
    max_queue
        Texts that may wait.

    Raises
    ------
    UserError
        Names what is wrong.
    """
    check_service_name(name)
    check_number("token_s", token_s, zero=True)
    check_priority(priority)
    if max_queue != 0:
        check_count("max_queue", max_queue)


def check_priority(priority: int) -> None:
    """Refuse what is no whole number.

    Raises
    ------
    UserError
        Says what it is.
    """
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise UserError(f"priority is a whole number, got {priority!r}.")


def check_service_name(name: str) -> None:
    """Refuse what no service can be called.

    Raises
    ------
    UserError
        Says what may stand in a name.
    """
    if not isinstance(name, str) or not is_name(name):
        raise UserError(
            f"a service is called by letters, digits and {' '.join(EXTRA)}, up to {MAX_NAME} of "
            f"them; got {name!r}.",
            next_step="Choose another name, such as birds-2.",
        )


def is_name(name: str) -> bool:
    """Whether a service may be called so.

    >>> is_name("birds-2"), is_name("../x y"), is_name("")
    (True, False, False)
    """
    return (
        0 < len(name) <= MAX_NAME
        and all(c.isascii() and (c.isalnum() or c in EXTRA) for c in name)
        and name[0].isalnum()
    )
