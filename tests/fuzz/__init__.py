"""Fuzzing of the readers: what must hold for any file, files to begin with, and ways to damage them."""
