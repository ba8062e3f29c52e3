"""Microbenchmarks: ``python -m bench NAME``. Each asks one question, checks its answers, and asserts no time."""
