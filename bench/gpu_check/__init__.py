"""A check of the CUDA path on real hardware, in under five minutes: ``python -m bench.gpu_check``.

It runs every operation against the CPU, the copies, the order of two streams, the laws of split models in short, the
benchmark of copies and a language model on the first GPU, and what takes two where there are two. Nothing here asserts
a time.
"""
