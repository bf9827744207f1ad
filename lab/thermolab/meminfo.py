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

    @classmethod
    def now(cls, guest: Guest) -> "Memory":
        """Reads the counters."""
        kib = guest.flat_keyed("/proc/meminfo")
        # Pages in the lists of each CPU are free as well, up to an eighth of the machine, and neither counter
        # includes them.
        lists = (line.split() for line in guest.read("/proc/zoneinfo").splitlines())
        listed = sum(int(fields[1]) for fields in lists if fields[:1] == ["count:"]) * _PAGE_BYTES
        return cls(kib["MemTotal"] << 10, (kib["MemFree"] << 10) + listed, (kib["MemAvailable"] << 10) + listed)
