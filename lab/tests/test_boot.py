"""A guest boots, runs operations, and stops."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from thermolab import binaries, kernels
from thermolab.errors import CommandFailed, GuestGone, GuestTimeout, Refused
from thermolab.guest import CGROUP_ROOT, Guest
from thermolab.lab import Lab
from thermolab.paths import LAB
from thermolab.qemu import Machine

pytestmark = pytest.mark.guest


def new_lab(directory: Path) -> Lab:
    # Prefers a kernel that needs no compiler.
    name = next((name for name in kernels.NAMES if kernels.is_ready(name)), kernels.NAMES[1])
    return Lab("test", kernels.kernel(name), directory, binaries.build())


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    with new_lab(tmp_path_factory.mktemp("guest")).guest() as guest:
        yield guest


def test_boot_is_within_its_time_limit(guest: Guest) -> None:
    assert guest.boot_seconds < 15
    assert guest.release == guest.kernel.release
    assert guest.run(["uname", "-r"]).stdout.strip() == guest.release


def test_commands_return_output_and_status(guest: Guest) -> None:
    done = guest.run(["sh", "-c", "cat; echo $WORD; echo no >&2; exit 3"], stdin="in ", env={"WORD": "w"}, check=False)
    assert (done.stdout, done.stderr, done.status, done.signal) == ("in w\n", "no\n", 3, None)
    with pytest.raises(CommandFailed, match=r"status 3.*no way"):
        guest.run(["sh", "-c", "echo no way >&2; exit 3"])
    with pytest.raises(Refused, match="/no/such"):
        guest.run(["/no/such"])
    with pytest.raises(Refused):
        guest.run(["sleep", "1000"], timeout_s=0.2)


def test_commands_run_in_their_cgroup(guest: Guest) -> None:
    job = guest.cgroup("parent/job")
    inside = guest.run(["cat", "/proc/self/cgroup"], cgroup=job).stdout
    assert inside.strip() == f"0::{job.removeprefix(CGROUP_ROOT)}"
    top = guest.cgroup("top")
    guest.write(f"{top}/memory.high", "64M")
    assert guest.number(f"{top}/memory.high") == 64 << 20
    assert guest.flat_keyed(f"{top}/memory.stat")["anon"] == 0
    with pytest.raises(Refused, match=r"memory\.high"):
        guest.write(f"{top}/memory.high", "nonsense")


def test_spawn_expect_and_exit(guest: Guest) -> None:
    pid = guest.spawn(["sh", "-c", "echo begun; read forever < /dev/zero; sleep 1000"], stdout="/tmp/out")
    assert guest.expect("/tmp/out", "beg") == "begun"
    with pytest.raises(GuestTimeout, match=f"process {pid}"):
        guest.wait_exit(pid, 0.05)
    guest.kill(pid, signal.SIGKILL)
    assert guest.wait_exit(pid).signal == signal.SIGKILL
    assert guest.keep("/tmp/out").read_text() == "begun\n"


def test_operations_run_concurrently(guest: Guest) -> None:
    waiting = threading.Thread(target=guest.expect, args=("/tmp/later", "now", 60))
    waiting.start()
    guest.write("/tmp/later", "now\n")
    waiting.join(60)
    assert not waiting.is_alive()


def test_the_disk_is_a_snapshot(guest: Guest) -> None:
    guest.write("/root/mark", "x")
    assert guest.read("/root/mark") == "x"
    with new_lab(guest.console.parent / "other").guest(Machine(swap=None, cpus=1)) as other:
        assert not other.exists("/root/mark")
        assert other.flat_keyed("/proc/meminfo")["SwapTotal"] == 0


def test_the_error_for_a_dead_guest_has_its_last_lines(tmp_path: Path) -> None:
    with new_lab(tmp_path).guest(Machine(swap=None)) as guest:
        qemu = os.pidfd_open(guest.pid)
        guest.write("/dev/console", "the last line\n")
        with pytest.raises(GuestGone, match=r"(?s)console\.log.*the last line"):
            guest.run(["/lab/busybox", "reboot", "-f"])
        # QEMU exits when the guest's kernel does. A pidfd is readable when its process has exited.
        assert select.select([qemu], [], [], 10)[0] == [qemu]
        os.close(qemu)


def test_killing_the_harness_kills_its_guest(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from tests.test_boot import new_lab\n"
        f"with new_lab(Path({str(tmp_path)!r})).guest() as guest:\n"
        "    print(guest.pid, flush=True); guest.run(['sleep', '1000'], timeout_s=1000)\n"
    )
    harness = subprocess.Popen([sys.executable, "-c", program], cwd=LAB, stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    qemu = os.pidfd_open(int(harness.stdout.readline()))
    harness.kill()
    harness.wait()
    assert select.select([qemu], [], [], 10)[0] == [qemu]
    os.close(qemu)
    harness.stdout.close()
