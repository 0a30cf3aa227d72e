"""What no plan can beat: lower bounds on latency and energy, and proofs of infeasibility. Pure."""
