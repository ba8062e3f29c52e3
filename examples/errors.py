"""The exceptions of the examples."""


class UsageError(Exception):
    """Something that whoever called the command can put right; it is shown as one line."""


class ArgumentError(UsageError):
    """An option of the command line that cannot be what it is; the command ends with status 2."""
