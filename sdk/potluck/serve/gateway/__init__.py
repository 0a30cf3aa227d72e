"""The HTTP entrance of a home's services: Open Inference Protocol v2, streams, health, metrics."""
