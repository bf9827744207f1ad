"""`thermocline-learn`, and `python -m thermocline.learn`, which is the same."""

import sys


def run() -> int:
    """Runs the command with the process's arguments. Returns the exit status."""
    try:
        from .cli import main
    except ModuleNotFoundError as error:
        print(f"thermocline-learn: {error}; install the package with its extra, thermocline[learn]", file=sys.stderr)
        return 1
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
