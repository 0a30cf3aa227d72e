"""Serving on real agents: the notebook's process is the entrance, its home computes."""
