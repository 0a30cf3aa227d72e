"""The agent as a service: what has to be written and run so that it starts by itself. Pure."""
