"""Tests of the benchmarks: their arithmetic, their command line, and that each runs. None asserts a time."""
