"""The records of guests that have ended, which the hosts of a pool send to a store: read by way of `thermocline pool import`."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from . import vms
from .vms import BadTrace, Vms


class Failed(Exception):
    """The command cannot be carried out."""


def read(url: str, program: str) -> Vms:
    """Reads the guests of all hosts in a store with known customer and untouched memory.

    Args:
        url: a directory, or s3://bucket/prefix.
        program: `thermocline`, which imports the records and reports those that it skips.

    Raises:
        Failed: the program cannot be run, or cannot read the store.
        BadTrace: no guest can be used for training.
    """
    with tempfile.TemporaryDirectory(prefix="thermocline-learn-") as directory:
        trace = Path(directory) / "vms.parquet"
        command = [program, "pool", "import", "--store", url, "--out", str(trace)]
        try:
            # What the program prints is of no use to the caller of this one; its warnings and errors are.
            done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        except OSError as error:
            raise Failed(f"cannot run {program}, which imports the records: {error.strerror}; name it by --program") from error
        if done.returncode != 0:
            raise Failed(f"{program} cannot import the records in {url}; its message is above")
        try:
            return vms.read(trace)
        except BadTrace as error:
            raise BadTrace(str(error).replace(str(trace), url)) from error
