"""The ONNX operators (of the domain ai.onnx alone) that a device runs, by what they are.

Left out on purpose: control flow (Loop, Scan, If), because a loop need not end; random numbers,
because a split would change them; sequences, maps, strings and custom domains.
"""

_WORDS: dict[str, str] = {
    "convolution": "Conv ConvTranspose ConvInteger QLinearConv",
    "product": "Gemm MatMul Einsum MatMulInteger QLinearMatMul",
    "recurrent": "LSTM GRU RNN",
    "normalisation": (
        "BatchNormalization LayerNormalization InstanceNormalization GroupNormalization "
        "LpNormalization LRN MeanVarianceNormalization RMSNormalization"
    ),
    "activation": (
        "Relu LeakyRelu PRelu Elu Selu Celu Gelu Sigmoid HardSigmoid HardSwish Tanh Softplus "
        "Softsign Mish Softmax LogSoftmax Clip ThresholdedRelu Swish"
    ),
    "pooling": (
        "MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool GlobalLpPool Resize Upsample "
        "DepthToSpace SpaceToDepth"
    ),
    "shape": (
        "Reshape Flatten Transpose Squeeze Unsqueeze Expand Tile Concat Split Slice Gather "
        "GatherElements GatherND Pad Identity Dropout Shape Size Trilu"
    ),
    "creation": "Constant ConstantOfShape Range EyeLike OneHot",
    "arithmetic": (
        "Add Sub Mul Div Neg Abs Sign Exp Log Sqrt Reciprocal Pow Sin Cos Tan Erf Floor Ceil Round "
        "Mod Min Max Sum "
        "Mean Cast CastLike CumSum QuantizeLinear DequantizeLinear DynamicQuantizeLinear"
    ),
    "comparison": (
        "Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Xor Where IsNaN IsInf BitwiseAnd "
        "BitwiseOr BitwiseNot"
    ),
    "reduction": (
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceSumSquare ArgMax ArgMin TopK"
    ),
}
KIND_OF: dict[str, str] = {name: kind for kind, words in _WORDS.items() for name in words.split()}
OPERATORS: frozenset[str] = frozenset(KIND_OF)
