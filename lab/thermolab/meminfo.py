"""The guest's memory, as the kernel counts it for the whole machine."""

from dataclasses import dataclass

from .guest import Guest

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Memory:
    """`MemTotal`, `MemFree` and `MemAvailable`."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    counters: dict[str, int]
    """All lines of `/proc/meminfo`, in KiB."""

    @classmethod
    def now(cls, guest: Guest) -> "Memory":
        """Reads the counters."""
        kib = guest.flat_keyed("/proc/meminfo")
        # Pages in the lists of each CPU are free as well, up to an eighth of the machine, and neither counter
        # includes them.
        lists = (line.split() for line in guest.read("/proc/zoneinfo").splitlines())
        listed = sum(int(fields[1]) for fields in lists if fields[:1] == ["count:"]) * _PAGE_BYTES
        return cls(kib["MemTotal"] << 10, (kib["MemFree"] << 10) + listed, (kib["MemAvailable"] << 10) + listed, kib)

    def changes(self, before: "Memory", at_least_mib: int = 2) -> str:
        """Returns the counters of `/proc/meminfo` that changed by so much since `before`, for people."""
        mib = {name: (kib - before.counters.get(name, 0)) / 1024 for name, kib in self.counters.items()}
        return ", ".join(f"{name} {change:+.0f}" for name, change in mib.items() if abs(change) >= at_least_mib)
