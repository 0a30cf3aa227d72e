"""Our own planner: dynamic programming, then local search. Pure."""
