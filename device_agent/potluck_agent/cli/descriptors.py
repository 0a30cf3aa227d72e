"""How many files and connections this process may have open."""

import os

from potluck_agent.errors import AgentError

NOFILE = 4096  # connections of strangers take descriptors, too
LEAST_NOFILE = 128  # an agent, its worker and two notebooks take some 60


def allow_connections() -> None:
    """As many open descriptors as the system lets us have: strangers must not use them up.

    Raises
    ------
    AgentError
        The system lets us have too few.
    """
    if os.name == "nt":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NOFILE if hard == resource.RLIM_INFINITY else min(NOFILE, hard)
    if wanted < LEAST_NOFILE:
        raise AgentError(
            f"this process may have {wanted} files and connections open, and needs {LEAST_NOFILE} "
            f"at least. Raise the limit (ulimit -Hn {NOFILE}) and start it again."
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
