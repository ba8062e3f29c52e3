"""Real models, split over devices and run: ``python -m examples.generate``, ``embed``, ``train``, ``mnist``, ``mlp``.

`examples.mlp` is the smallest one and is to be read first. `examples.models`
holds the Llama family, the BERT encoder and two networks for images; the rest
is what the commands share: reading options, finding model files, turning text
into tokens, training runs that can stop and go on.
"""
