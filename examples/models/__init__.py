"""Real models as layers that can be split: the Llama family, and the BERT encoder."""
