"""The guest's swap device: slower than it is, or emptied."""

from . import cold_age
from .guest import Guest

DEVICE = cold_age.SWAP_DEVICE
"""The disk that the guest swaps on."""

_SLOW = "slow-swap"


def empty(guest: Guest, device: str = DEVICE) -> None:
    """Bring all that was swapped out back into DRAM; the device is empty afterwards, and in use."""
    guest.run(["busybox", "swapoff", device], timeout_s=300)
    guest.run(["busybox", "swapon", device])


def delay(guest: Guest, milliseconds: int) -> str:
    """Make every operation of the swap device take so much longer, by device-mapper; returns the device in its place.

    A limit of operations per second (`SwapDisk.iops_total`) lets single ones pass at full speed, and single ones are
    what a well-behaved job waits for.
    """
    guest.run(["busybox", "swapoff", DEVICE], timeout_s=300)
    # The small kernel has it built in.
    guest.run(["modprobe", "dm-delay"], check=False)
    sectors = guest.number(f"/sys/block/{DEVICE.removeprefix('/dev/')}/size")
    table = f"0 {sectors} delay {DEVICE} 0 {milliseconds}"
    guest.run(["dmsetup", "create", "--noudevsync", _SLOW, "--table", table])
    # Nothing makes links under /dev/mapper here.
    name = guest.run(["dmsetup", "info", "--columns", "--noheadings", "-o", "blkdevname", _SLOW]).stdout.strip()
    device = f"/dev/{name}"
    guest.run(["mkswap", device])
    guest.run(["busybox", "swapon", device])
    return device


def written_bytes(guest: Guest) -> int:
    """Bytes written to the swap device since boot, by the block layer's own count."""
    # /sys/block/*/stat, field 7: sectors of 512 bytes written.
    return int(guest.read(f"/sys/block/{DEVICE.removeprefix('/dev/')}/stat").split()[6]) * 512
