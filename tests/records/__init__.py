"""Tests of `records`."""
