"""Where model directories come from: known models are fetched and converted once, others are local.

Nothing that runs before workers start imports torch: a conversion is numpy from the GGUF file to
the safetensors file, and so is the unpacking of a draft.
"""
