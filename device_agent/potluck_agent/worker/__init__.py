"""The disposable worker: torch and onnxruntime in a process of their own, without keys, files or
network.
"""
