"""How many files and connections a process that listens may have open."""

import sys

NOFILE = 4096  # connections of strangers take descriptors, too


def allow_connections() -> int:
    """Raise this process's limit of open descriptors as far as it may go: strangers must not use
    them up. Returns the limit.
    """
    if sys.platform == "win32":
        return NOFILE  # without such a limit
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NOFILE if hard == resource.RLIM_INFINITY else min(NOFILE, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
