"""Other implementations to measure beside: each is a script that an interpreter with its packages runs.

Such an environment is made with

    python3 -m venv beside
    beside/bin/pip install torch numpy gguf safetensors
    beside/bin/pip install llama-cpp-python
    python -m bench generate --beside beside/bin/python

`client` is this side. The scripts `with_torch` and `with_llama_cpp` import
nothing of ours but `serve`, which lies beside them, so that the interpreter
that runs them needs nothing of ours either.
"""
