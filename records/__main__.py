"""Look into checkpoints, check them, and convert them: burnpack, safetensors, GGUF, named MessagePack, PyTorch.

Files are read one tensor at a time, so they may be larger than memory. A
command ends with 0, with 1 if something is wrong (an error in one line on the
error stream; damage that verify found, differences that diff found), or with
2 if its arguments are.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from .commands import converting, diffing, extracting, inspecting, verifying
from .commands.command_line import OneLineParser, run

_NAME: Final = "python -m records"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command.

    Args:
        arguments: by default those of the process.
    """
    found = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    run(f"records {found.command}", lambda: found.run(found))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (inspecting, verifying, converting, diffing, extracting):
        command.add(commands)
    return parser


if __name__ == "__main__":
    main()
