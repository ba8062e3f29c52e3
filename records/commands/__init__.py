"""The commands of ``python -m records``: inspect, verify, convert, diff, extract."""
