"""How many connections of each kind there may be where the system permits few descriptors: none
takes those of others.
"""

from potluck_agent.core.members import MAX_LINKS
from potluck_agent.net.socket_memory import MAX_STRANGERS

# An agent, its workers and 64 notebooks take so many, or half of fewer. Of the rest devices take 5
# each, and strangers 3; some more at the moment in which one comes for another.
OWN = 256
DEVICE_SHARE, STRANGER_SHARE = 7, 15


def most_links(n_descriptors: int) -> int:
    """How many devices may have a connection."""
    return min(MAX_LINKS, _for_others(n_descriptors) // DEVICE_SHARE)


def most_strangers(n_descriptors: int) -> int:
    """How many connections there may be over which nothing has come."""
    return min(MAX_STRANGERS, _for_others(n_descriptors) // STRANGER_SHARE)


def _for_others(n_descriptors: int) -> int:
    return n_descriptors - min(OWN, n_descriptors // 2)
