"""A target in FP8: weights, activations and KV in E4M3, by kernels on a GPU that has it."""
