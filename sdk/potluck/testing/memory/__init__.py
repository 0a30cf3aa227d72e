"""A home in this process: the real controller, real agent cores and real workers, joined by a
network in virtual time.

    with memory_home(2) as home:
        home.deploy(plan, model).wait().fit(data).wait()

Messages travel as encoded frames, so chunks, credits, heartbeats and timeouts are real; tasks are
really computed. Neither processes nor sockets are there, so an agent starts in milliseconds, and a
timeout of a minute is over at once. What only a process can show (memory, limits, crashes of the
interpreter, keys) needs `Home.local`.
"""

from potluck.testing.memory.lab import MemoryLab, memory_home

__all__ = ["MemoryLab", "memory_home"]
