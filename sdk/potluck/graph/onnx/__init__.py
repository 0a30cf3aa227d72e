"""ONNX files as models, and pieces of models as ONNX."""
