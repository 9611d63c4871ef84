"""A target on an x86-64 CPU, by kernels of our own over weights in blocks of 32."""
