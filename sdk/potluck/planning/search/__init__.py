"""The parts of our own planner: dynamic programming, then local search. Pure."""
