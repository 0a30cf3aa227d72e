"""Where a graph may be cut, and what crosses the cuts."""
