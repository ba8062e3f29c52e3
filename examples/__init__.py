"""Real models, split over devices and run: ``python -m examples.generate``, ``examples.embed``, ``examples.mlp``.

`examples.mlp` is the smallest one and is to be read first. `examples.models`
holds the Llama family and the BERT encoder; the rest is what the two commands
share: reading options, finding model files, turning text into tokens.
"""
