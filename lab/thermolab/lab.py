"""The interface of a scenario to the lab: guests to boot, bounds to check, a directory for its files."""

import sys
from pathlib import Path

from . import rootfs
from .guest import Guest
from .kernels import Kernel
from .qemu import Machine
from .results import Bounds


class Lab:
    """One scenario on one kernel."""

    def __init__(self, scenario: str, kernel: Kernel, directory: Path, binaries: dict[str, Path]) -> None:
        self.scenario = scenario
        self.kernel = kernel
        self.directory = directory
        """Directory for files of this run, such as console logs and copies made by `Guest.keep`."""
        self.bounds = Bounds()
        self._binaries = binaries
        self._guests = 0

    @property
    def has_agent(self) -> bool:
        """Whether guests carry the `thermocline` binary."""
        return "thermocline" in self._binaries

    def program(self, name: str) -> Path:
        """Returns the file of a program that guests carry; it runs on the host as well."""
        return self._binaries[name]

    def guest(self, machine: Machine | None = None) -> Guest:
        """Returns a guest, to be used in a `with` block, with /lab/labguest and /lab/thermocline in it."""
        self._guests += 1
        number = "" if self._guests == 1 else f"-{self._guests}"
        console = self.directory / f"{self.kernel.name}{number}-console.log"
        console.unlink(missing_ok=True)
        return Guest(self.kernel, machine or Machine(), root=rootfs.image(), binaries=self._binaries, console=console)

    def say(self, text: str) -> None:
        """Prints progress for the user."""
        print(f"{self.scenario} [{self.kernel.name}]: {text}", file=sys.stderr, flush=True)

    def at_most(self, name: str, value: float, bound: float) -> None:
        """Checks that the figure `name` (dotted if nested) does not exceed `bound`."""
        self.bounds.at_most(name, value, bound)

    def at_least(self, name: str, value: float, bound: float) -> None:
        """Checks that the figure `name` (dotted if nested) is not below `bound`."""
        self.bounds.at_least(name, value, bound)

    def holds(self, name: str, held: bool, why: str) -> None:
        """Checks that `held` is true; `why` states what was found instead, and the remedy."""
        self.bounds.holds(name, held, why)
