"""What to do when a home changes: decisions of pure functions, which `run/` carries out."""
