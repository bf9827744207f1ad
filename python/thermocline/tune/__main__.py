"""`thermocline-tune`, and `python -m thermocline.tune`, which is the same."""

import sys

from .cli import main


def run() -> int:
    """Runs the command with the process's arguments. Returns the exit status."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
