"""What serving decides: allocator, batching, handler, placement and state exchange. Pure."""

from potluck.serve.decide.allocate import allocate, allocate_all
from potluck.serve.decide.node import Node
from potluck.serve.decide.placement import place, place_best
from potluck.serve.decide.records import Frequency, Latency, Service
from potluck.serve.decide.ring import Ring

__all__ = [
    "Frequency",
    "Latency",
    "Node",
    "Ring",
    "Service",
    "allocate",
    "allocate_all",
    "place",
    "place_best",
]
