"""PURE. Which layers run where, in what shares."""
