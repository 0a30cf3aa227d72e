"""ONNX segments on onnxruntime."""
