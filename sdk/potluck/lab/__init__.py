"""A home on one machine: emulated devices, real agents and sockets."""
