"""What this device computes on: found when the agent starts, tried in throw-away processes."""
