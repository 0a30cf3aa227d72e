"""The wire: bytes to messages and back. Pure: no sockets, no files, no clock, no torch.

`messages` is the one table of what may be said, and `frames` turns a message into ZeroMQ frames and
back. `program` and `segment` are the two documents that a notebook sends to a device. PROTOCOL.md
is the authority; a test ties it to this code.
"""

__version__ = "0.1.0"
