"""From torch.export or ONNX to a graph of layers as data; cut into segments."""
