"""How long tests wait for what comes sooner or later, where only they would notice that it does
not: longer than the busiest machine takes, as only a failing test waits so long. What raises by
itself is waited for without end: pytest's own timeout ends that."""

TIMEOUT_S = 180.0
