"""The command line of the agent, and the commands that talk to one that runs."""
