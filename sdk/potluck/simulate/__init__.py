"""PURE. What would happen: time, energy and memory on shared links."""
