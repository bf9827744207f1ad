"""The guest's swap device: slower than it is, broken, or emptied."""

from . import cold_age
from .guest import Guest

DEVICE = cold_age.SWAP_DEVICE
"""The disk that the guest swaps on."""

_SLOW, _BREAKABLE = "slow-swap", "breakable-swap"


def empty(guest: Guest, device: str = DEVICE) -> None:
    """Bring all that was swapped out back into DRAM; the device is empty afterwards, and in use."""
    guest.run(["busybox", "swapoff", device], timeout_s=300)
    guest.run(["busybox", "swapon", device])


def delay(guest: Guest, milliseconds: int) -> str:
    """Make every operation of the swap device take so much longer, by device-mapper; returns the device in its place.

    A limit of operations per second (`SwapDisk.iops_total`) lets single ones pass at full speed, and single ones are
    what a well-behaved job waits for.
    """
    return _mapped(guest, _SLOW, "dm-delay", f"delay {DEVICE} 0 {milliseconds}")


def breakable(guest: Guest) -> str:
    """Put a device in the swap device's place that `break_down` can make fail; returns it."""
    return _mapped(guest, _BREAKABLE, "dm-mod", f"linear {DEVICE} 0")


def break_down(guest: Guest) -> None:
    """Have all requests to the device of `breakable` fail from now on."""
    table = f"0 {_sectors(guest)} error"
    # Nothing is waited for: what is on its way to a device that broke does not arrive either.
    guest.run(["dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", _BREAKABLE])
    guest.run(["dmsetup", "load", _BREAKABLE, "--table", table])
    guest.run(["dmsetup", "resume", "--noudevsync", _BREAKABLE])


def _mapped(guest: Guest, name: str, module: str, target: str) -> str:
    guest.run(["busybox", "swapoff", DEVICE], timeout_s=300)
    # The small kernel has it built in.
    guest.run(["modprobe", module], check=False)
    guest.run(["dmsetup", "create", "--noudevsync", name, "--table", f"0 {_sectors(guest)} {target}"])
    # Nothing makes links under /dev/mapper here.
    node = guest.run(["dmsetup", "info", "--columns", "--noheadings", "-o", "blkdevname", name]).stdout.strip()
    device = f"/dev/{node}"
    guest.run(["mkswap", device])
    guest.run(["busybox", "swapon", device])
    return device


def _sectors(guest: Guest) -> int:
    return guest.number(f"/sys/block/{DEVICE.removeprefix('/dev/')}/size")


def written_bytes(guest: Guest) -> int:
    """Bytes written to the swap device since boot, by the block layer's own count."""
    # /sys/block/*/stat, field 7: sectors of 512 bytes written.
    return int(guest.read(f"/sys/block/{DEVICE.removeprefix('/dev/')}/stat").split()[6]) * 512
