"""The guest's swap devices: slowed down, made to fail, or emptied; and zram."""

from . import cold_age
from .guest import Guest

DEVICE = cold_age.SWAP_DEVICE
"""Block device that the guest swaps on."""

_SLOW, _BREAKABLE = "slow-swap", "breakable-swap"


def empty(guest: Guest, device: str = DEVICE) -> None:
    """Swaps in everything that was swapped out; afterwards the device is empty and in use again."""
    guest.run(["busybox", "swapoff", device], timeout_s=300)
    guest.run(["busybox", "swapon", device])


def delay(guest: Guest, milliseconds: int) -> str:
    """Adds `milliseconds` to every request of the swap device by device-mapper; returns the device that replaces it.

    `SwapDisk.iops_total` cannot be used for this: it lets single requests pass at full speed, and a well-behaved job
    waits for single requests.
    """
    return _mapped(guest, _SLOW, "dm-delay", f"delay {DEVICE} 0 {milliseconds}")


def breakable(guest: Guest) -> str:
    """Replaces the swap device by one that `break_down` can make fail; returns it."""
    return _mapped(guest, _BREAKABLE, "dm-mod", f"linear {DEVICE} 0")


def break_down(guest: Guest) -> None:
    """Makes all requests to the device of `breakable` fail from now on."""
    table = f"0 {_sectors(guest)} error"
    # --noflush: requests in flight are not waited for, as on a device that breaks.
    guest.run(["dmsetup", "suspend", "--noflush", "--nolockfs", "--noudevsync", _BREAKABLE])
    guest.run(["dmsetup", "load", _BREAKABLE, "--table", table])
    guest.run(["dmsetup", "resume", "--noudevsync", _BREAKABLE])


def zram(guest: Guest, size_bytes: int) -> str:
    """Swaps to a zram device of this size first, with the kernel's default compressor; returns the device."""
    # The idle kernel has the module built in.
    guest.run(["modprobe", "zram"], check=False)
    guest.write("/sys/block/zram0/disksize", str(size_bytes))
    guest.run(["mkswap", "/dev/zram0"])
    # Busybox sets no priorities; the kernel gives each area a lower one than those that are in use.
    has_disk = DEVICE in guest.read("/proc/swaps")
    if has_disk:
        guest.run(["busybox", "swapoff", DEVICE])
    guest.run(["busybox", "swapon", "/dev/zram0"])
    if has_disk:
        guest.run(["busybox", "swapon", DEVICE])
    return "/dev/zram0"


def zram_memory_bytes(guest: Guest) -> int:
    """Returns the DRAM that zram0 occupies."""
    # mm_stat, field 3: mem_used_total.
    return int(guest.read("/sys/block/zram0/mm_stat").split()[2])


def _mapped(guest: Guest, name: str, module: str, target: str) -> str:
    guest.run(["busybox", "swapoff", DEVICE], timeout_s=300)
    # The idle kernel has the module built in.
    guest.run(["modprobe", module], check=False)
    guest.run(["dmsetup", "create", "--noudevsync", name, "--table", f"0 {_sectors(guest)} {target}"])
    # There is no udev that would create links under /dev/mapper.
    node = guest.run(["dmsetup", "info", "--columns", "--noheadings", "-o", "blkdevname", name]).stdout.strip()
    device = f"/dev/{node}"
    guest.run(["mkswap", device])
    guest.run(["busybox", "swapon", device])
    return device


def _sectors(guest: Guest) -> int:
    return guest.number(f"/sys/block/{DEVICE.removeprefix('/dev/')}/size")


def written_bytes(guest: Guest) -> int:
    """Returns the bytes written to the swap device since boot, from the block layer's statistics."""
    # /sys/block/*/stat, field 7: sectors of 512 bytes written.
    return int(guest.read(f"/sys/block/{DEVICE.removeprefix('/dev/')}/stat").split()[6]) * 512
