"""What serving decides: allocator, batching, handler, placement and state exchange. Pure."""

from potluck.serve.scheduling.allocate import allocate, allocate_all
from potluck.serve.scheduling.node import ServerNode
from potluck.serve.scheduling.placement import place, place_best
from potluck.serve.scheduling.records import Frequency, Latency, ServiceSpec
from potluck.serve.scheduling.state_exchange import Ring

__all__ = [
    "Frequency",
    "Latency",
    "ServerNode",
    "Ring",
    "ServiceSpec",
    "allocate",
    "allocate_all",
    "place",
    "place_best",
]
