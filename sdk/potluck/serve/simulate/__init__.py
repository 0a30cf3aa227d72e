"""A simulated home or edge cloud that serves, driven by the very code of `scheduling`. Pure."""
