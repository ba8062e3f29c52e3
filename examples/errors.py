"""The exceptions of the examples, which are those of every command line of this project."""

from records.commands.command_line import ArgumentError as ArgumentError
from records.commands.command_line import UsageError as UsageError
