"""How long tests wait for what comes sooner or later: longer than the busiest machine takes, as only a failing test
waits so long, and shorter than pytest lets a test take."""

PATIENCE_S = 90.0
