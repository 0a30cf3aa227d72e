"""The agent's own errors: what the person at the device reads when it cannot start or go on."""


class AgentError(Exception):
    """The agent cannot do what was asked; the message says why and what to do next."""
