"""Talk with the devices: one session with each, a thread with the sockets, a pure machine that
decides.
"""
