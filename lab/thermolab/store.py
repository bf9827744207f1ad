"""An object store on the host that guests reach at one address and port, in a network without anything else.

The server is s3s-fs, which serves a directory by the S3 protocol; the first use compiles it (some minutes).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .cache import call, say
from .errors import LabError
from .guest import Guest
from .paths import LAB, TREE

_VERSION = "0.14.1"
BUCKET = "fleet"
_KEY, _SECRET = "thermocline-lab", "a-secret-of-the-lab-alone"
_GUEST_ADDRESS, _GUEST_PORT = "10.0.2.100", 9000
_START_SECONDS = 60.0

URL = f"s3://{BUCKET}/traces"


class ObjectStore:
    """A store to be used in a `with` block; `stop` and `start` simulate an outage."""

    def __init__(self) -> None:
        self._program = _program()
        self.directory = Path(tempfile.mkdtemp(prefix="thermolab-store-"))
        (self.directory / BUCKET).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Starts the server; objects stored before an outage are kept."""
        argv = [str(self._program), "--host", "127.0.0.1", "--port", str(self.port)]
        argv += ["--access-key", _KEY, "--secret-key", _SECRET, str(self.directory)]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise LabError(f"{self._program} does not listen on port {self.port}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Stops the server: connections are refused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def qemu_args(self) -> tuple[str, ...]:
        """QEMU's arguments for a network that contains only this store."""
        return network(_GUEST_ADDRESS, _GUEST_PORT, self.port)

    @property
    def guest_env(self) -> dict[str, str]:
        """Environment variables that an agent in a guest needs."""
        return _env(f"http://{_GUEST_ADDRESS}:{_GUEST_PORT}")

    def connect(self, guest: Guest) -> None:
        """Configures the guest's network."""
        connect(guest)

    def objects(self) -> list[str]:
        """Returns the paths of all objects below the traces' prefix."""
        root = self.directory / BUCKET / "traces"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def run(self, program: Path, *arguments: str) -> str:
        """Runs the host's `thermocline` with this store's credentials; returns its output.

        Raises:
            LabError: it exited with a status other than 0.
        """
        env = {**os.environ, **_env(f"http://127.0.0.1:{self.port}")}
        done = subprocess.run([program, *arguments], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(
                f"`thermocline {' '.join(arguments)}` exited with status {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def entries(self, program: Path) -> list[dict[str, Any]]:
        """Returns all entries of all traces, merged."""
        lines = self.run(program, "trace", "export", URL, "--format", "json").splitlines()
        return [json.loads(line) for line in lines]


def connect(guest: Guest) -> None:
    """Configures the network of a guest that has a device with a forwarded port."""
    # The idle kernel has the driver built in.
    guest.run(["modprobe", "virtio_net"], check=False)
    devices = guest.run(["ls", "/sys/class/net"]).stdout.split()
    device = next((name for name in devices if name != "lo"), None)
    if device is None:
        raise LabError(f"the guest has no network device, only {devices}: start it with a network in its qemu_args")
    guest.run(["ip", "link", "set", "lo", "up"])
    guest.run(["ip", "address", "add", "10.0.2.15/24", "dev", device])
    guest.run(["ip", "link", "set", device, "up"])


def network(address: str, port: int, host_port: int, *, bus: str = "") -> tuple[str, ...]:
    """Returns QEMU's arguments for a network with one address and port, which is a port of this machine.

    `bus` is the PCI bus of its device, for machines with several.
    """
    relay = f"{sys.executable} {LAB / 'thermolab' / 'relay.py'} {host_port}"
    forward = f"guestfwd=tcp:{address}:{port}-cmd:{relay}"
    on = f",bus={bus}" if bus else ""
    return ("-netdev", f"user,id=net,restrict=on,{forward}", "-device", f"virtio-net-pci,netdev=net{on}")


def _env(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
    }


def _program() -> Path:
    root = TREE / "target" / "tools"
    program = root / "bin" / "s3s-fs"
    if not program.exists():
        say(f"building s3s-fs {_VERSION}, a server of the S3 protocol")
        what = ["s3s-fs", "--version", _VERSION, "--locked", "--features", "binary"]
        call(["cargo", "install", *what, "--root", str(root)])
    return program
