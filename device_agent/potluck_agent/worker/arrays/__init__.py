"""Tensors in the library that this device has."""
