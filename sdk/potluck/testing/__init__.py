"""For tests of potluck, and of what is written for it: a home in memory, faults, and peers that
were taken over.

`memory` is a home without processes and sockets, in virtual time. `faults` ends devices, and says
when; `internals` gives the parts behind a home and a run.

`hostile_worker` plays a worker to a real agent, `hostile_agent` an agent to a real notebook; each
has a table of what it does. The promise that both tables are held against: a worker ends itself and
never its agent, an agent its own session and never the notebook's others.
"""
