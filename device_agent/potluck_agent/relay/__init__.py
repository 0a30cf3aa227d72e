"""Relays: a device without an address of its own is reached through one that has one."""
