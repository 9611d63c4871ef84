"""Where model directories come from: known models are fetched and converted once, others are local.

Nothing here imports torch: a conversion is numpy from the GGUF file to the safetensors file.
"""
