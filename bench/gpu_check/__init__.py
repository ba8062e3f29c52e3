"""A check of the CUDA path on real hardware, in under five minutes: ``python -m bench.gpu_check``.

It runs every operation against the CPU, the copies, the order of streams, errors and their numbers, the laws of split
models, the benchmark of copies and a language model on the first GPU, NVIDIA's checker of memory where it is installed,
and what takes two GPUs where there are two. Nothing here asserts a time. Kernels are compiled when first used, which
takes most of the first run; CuPy keeps them in the folder that CUPY_CACHE_DIR names.
"""
