"""Each kernel boots within 15 s to a control channel and has the interfaces that far memory needs.

Optional interfaces are figures; required ones are bounds.
"""

from typing import Any

from thermolab.guest import CGROUP_ROOT, Guest
from thermolab.lab import Lab

KERNELS = ("6.12-idle", "6.12", "7.2")

BOOT_SECONDS_MAX = 15.0

_FILES = {
    "page_idle": "/sys/kernel/mm/page_idle/bitmap",
    "lru_gen": "/sys/kernel/mm/lru_gen/enabled",
    "lru_gen_debugfs": "/sys/kernel/debug/lru_gen",
    "damon_sysfs": "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
    "damon_stat": "/sys/module/damon_stat/parameters/enabled",
    "zswap": "/sys/module/zswap/parameters/enabled",
    "psi": "/proc/pressure/memory",
}

_ESSENTIAL = ("lru_gen", "lru_gen_debugfs", "damon_sysfs", "zswap", "psi")


def run(lab: Lab) -> dict[str, Any]:
    """Boots a guest and reads its interfaces."""
    with lab.guest() as guest:
        lab.say(f"up in {guest.boot_seconds:.1f} s: Linux {guest.release}")
        features = {name: guest.exists(path) for name, path in _FILES.items()}
        figures: dict[str, Any] = {
            "release": guest.release,
            "boot_seconds": guest.boot_seconds,
            "memory_total_bytes": guest.flat_keyed("/proc/meminfo")["MemTotal"] * 1024,
            "swap_total_bytes": guest.flat_keyed("/proc/meminfo")["SwapTotal"] * 1024,
            "features": features,
            "lru_gen_enabled": int(guest.read(_FILES["lru_gen"]), 16),
            "zswap_parameters": _zswap_parameters(guest),
            "cgroup_controllers": guest.read(f"{CGROUP_ROOT}/cgroup.subtree_control").split(),
        }
        _zswap_takes_lz4(lab, guest)
    lab.at_most("boot_seconds", figures["boot_seconds"], BOOT_SECONDS_MAX)
    lab.at_least("swap_total_bytes", figures["swap_total_bytes"], 1)
    for name in _ESSENTIAL:
        lab.holds(f"features.{name}", features[name], f"{_FILES[name]} does not exist in the guest")
    lab.holds(
        "features.page_idle", features["page_idle"] or "idle" not in lab.kernel.name, "the idle bitmap is missing"
    )
    for controller in ("memory", "io"):
        enabled = controller in figures["cgroup_controllers"]
        lab.holds(f"cgroup_controllers.{controller}", enabled, "not enabled for the root's children")
    return figures


def _zswap_parameters(guest: Guest) -> dict[str, str]:
    directory = "/sys/module/zswap/parameters"
    return {name: guest.read(f"{directory}/{name}").strip() for name in guest.run(["ls", directory]).stdout.split()}


def _zswap_takes_lz4(lab: Lab, guest: Guest) -> None:
    """The compressor is a module in Debian's kernels; the kernel must be able to load it on demand."""
    path = "/sys/module/zswap/parameters/compressor"
    guest.write(path, "lz4")
    found = guest.read(path).strip()
    lab.holds("zswap_parameters.compressor", found == "lz4", f"wrote lz4 and read {found!r}")
