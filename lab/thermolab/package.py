"""The Debian package of the program, built for guests."""

from pathlib import Path

from .cache import call
from .lab import Lab
from .paths import TREE


def built(lab: Lab, revision: int) -> Path:
    """Returns a package of the lab's program, in a revision; scenarios that use it name feature `s3`."""
    call(["tools/package", lab.program("thermocline")], cwd=TREE, env={"REVISION": str(revision)})
    (made,) = (TREE / "target" / "package").glob(f"*-{revision}_amd64.deb")
    return made.rename(lab.directory / f"revision-{revision}.deb")
