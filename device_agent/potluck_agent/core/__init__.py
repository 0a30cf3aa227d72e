"""The agent as a pure state machine, and its parts. No sockets, clock, threads or files."""
