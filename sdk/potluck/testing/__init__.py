"""Peers that were taken over, for tests of agents, notebooks and whoever writes another of either.

`worker` plays a worker to a real agent, `agent` an agent to a real notebook; each has a table of
what it does. The promise that both tables are held against: a worker ends itself and never its
agent, an agent its own session and never the notebook's others.
"""
