"""Machines that share a device of pool memory: guests with kernels of their own, and one file behind their expander."""

import json
import time
from types import TracebackType
from typing import Any, Self

from . import cxl, store
from .errors import CommandFailed, GuestTimeout, LabError
from .guest import Guest
from .pool import GUEST_ADDRESS, SLICE_MIB, Pool
from .qemu import MIB

_PORT = 7443
_RUNTIME = "/run/thermocline"
_IDENTITY = "/run/identity"
_LOG = "/run/pool-memory.log"
_UP_SECONDS = 120.0
NODE = 1
"""The node of the device's memory."""


class Member:
    """One machine, and the daemon of its pool memory."""

    def __init__(self, pool: Pool, name: str, local_mib: int) -> None:
        self.pool = pool
        self.name = name
        machine = cxl.machine(
            local_mib,
            pool.slices * SLICE_MIB,
            backing=pool.device,
            cmdline="memhp_default_state=offline",
            qemu_args=store.network(GUEST_ADDRESS, _PORT, pool.port, bus="pcie.0"),
        )
        self.guest: Guest = pool.lab.guest(machine)
        self._daemon = 0

    def __enter__(self) -> Self:
        self.guest.__enter__()
        store.connect(self.guest)
        cxl.give_programs(self.guest)
        self._make_device()
        for extension in (f"{self.name}.pem", f"{self.name}.key", "ca.pem"):
            self.guest.mkdir(_IDENTITY)
            self.guest.write(f"{_IDENTITY}/{extension}", (self.pool.directory / "tls" / extension).read_text())
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.guest.__exit__(kind, error, trace)

    def _make_device(self) -> None:
        """Follows the doctor until the expander's memory is a region; its blocks stay offline."""
        for _ in range(12):
            report = json.loads(
                self.guest.run(["thermocline", "pool", "doctor", "--format", "json"], check=False).stdout
            )
            if report["dax"] or not report["next"]:
                break
            for command in report["next"]:
                cxl.shell(self.guest, command)
            time.sleep(0.5)
        if not report["dax"]:
            raise LabError(f"{self.name}: the doctor made no DAX device: {report}")
        self.until("its memory blocks are known", lambda: bool(self.blocks()))

    def start(self) -> None:
        """Starts the daemon and waits until it has a lease."""
        argv = ["thermocline", "pool", "memory", "serve", "--host", self.name, "--device", "dax0.0"]
        argv += ["--manager", f"https://{GUEST_ADDRESS}:{_PORT}", "--identity", f"{_IDENTITY}/{self.name}"]
        self._daemon = self.guest.spawn(argv, stderr=_LOG)
        self.until("its daemon has a lease", self._is_up)

    def kill_daemon(self) -> None:
        """Kills the daemon with SIGKILL, as in a crash."""
        self.guest.kill(self._daemon, 9)
        self.guest.wait_exit(self._daemon)

    def _is_up(self) -> bool:
        try:
            return self.memory("list")["pool_error"] is None
        except CommandFailed:
            return False

    def memory(self, *argv: str, timeout_s: float = 300.0) -> Any:
        """Returns the output of a `thermocline pool memory` command.

        Raises:
            CommandFailed: it was refused.
        """
        return json.loads(
            self.guest.run(["thermocline", "pool", "memory", *argv, "--format", "json"], timeout_s=timeout_s).stdout
        )

    def set_block(self, at: int, state: str) -> None:
        """Changes the state of a slice behind the daemon's back."""
        self.guest.write(f"/sys/devices/system/memory/memory{self._first() + at}/state", state)

    def _first(self) -> int:
        """Returns the number of the device's first memory block; a slice has one."""
        return int(self.guest.read("/sys/bus/dax/devices/dax0.0/resource"), 16) // (SLICE_MIB * MIB)

    def blocks(self) -> dict[int, bool]:
        """Returns for each slice of the device whether the kernel has it online, by its own files."""
        start = self._first()
        script = "cd /sys/devices/system/memory; for m in memory*; do echo ${m#memory} $(cat $m/state); done"
        states = dict(line.split() for line in self.guest.run(["sh", "-c", script]).stdout.splitlines())
        slices = range(self.pool.slices)
        return {at: states[str(start + at)] != "offline" for at in slices if str(start + at) in states}

    def owned(self) -> set[int]:
        """Returns the slices that are online."""
        return {at for at, online in self.blocks().items() if online}

    def find(self, *marks: int) -> dict[str, Any]:
        """Searches the node's physical memory for marks."""
        argv = ["labguest", "marks", "find", "--node", str(NODE)] + [f"--mark={mark}" for mark in marks]
        found: dict[str, Any] = json.loads(self.guest.run(argv, timeout_s=600.0).stdout)
        return found

    def hold(self, mark: int, mib: int) -> int:
        """Starts a program that fills pool memory with a mark and checks it; returns its pid once it is filled."""
        out = f"/run/mark-{mark}"
        argv = ["labguest", "marks", "hold", "--mark", str(mark), "--mib", str(mib), "--node", str(NODE)]
        pid = self.guest.spawn(argv, stdout=out)
        self.until(f"mark {mark} is written", lambda: "held_bytes" in self.guest.read(out))
        return pid

    def checks(self, mark: int) -> list[int]:
        """Returns the damaged bytes of each check that the holder of a mark has made."""
        lines = [json.loads(line) for line in self.guest.read(f"/run/mark-{mark}").splitlines()[1:]]
        return [line["damaged_bytes"] for line in lines]

    def until(self, what: str, holds: Any, timeout_s: float = _UP_SECONDS) -> None:
        """Waits until `holds()` is true."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise GuestTimeout(f"{self.name}: {what}: not within {timeout_s:g} s")
            time.sleep(0.2)
