"""Too few files and connections are said before an agent starts."""

from potluck_agent.errors import AgentError
from potluck_wire.descriptors import NOFILE, allow_connections

LEAST_NOFILE = 128  # an agent, its worker and two notebooks take some 60


def check_descriptors() -> int:
    """Have as many open descriptors allowed as the system lets us have; returns how many.

    Raises
    ------
    AgentError
        These are too few.
    """
    allowed = allow_connections()
    if allowed < LEAST_NOFILE:
        raise AgentError(
            f"this process may have {allowed} files and connections open, and needs {LEAST_NOFILE} "
            f"at least. Raise the limit (ulimit -Hn {NOFILE}) and start it again."
        )
    return allowed
