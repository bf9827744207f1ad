"""A fleet's operator on the host: keys, bundles, and who follows them, in a repository on the lab's object store."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from . import node
from .guest import Guest
from .store import BUCKET, ObjectStore

_URL = f"s3://{BUCKET}/rollout"
_ROOT = "/etc/thermocline/root.json"
_ROLLOUT = "lab"

Knobs = Mapping[str, Mapping[str, str]]


def following(poll_s: int, machine: str = "guest") -> node.Settings:
    """What an agent is told so that it follows the operator."""
    return {
        "rollout.store": _URL,
        "rollout.root": _ROOT,
        "rollout.poll": f"{poll_s}s",
        "trace.cluster": "lab",
        "trace.machine": machine,
    }


class Operator:
    """Publishes by `thermocline rollout`, with keys in a directory of its own."""

    def __init__(self, store: ObjectStore, program: Path, directory: Path) -> None:
        self.store = store
        self._program = program
        self._directory = directory
        self._versions = 0
        self.metadata = store.directory / BUCKET / "rollout" / "metadata"
        """Where the signed files are, for those who would change them."""

    def begin(self) -> None:
        """Make keys and an empty repository."""
        self._rollout("keygen", str(self._directory / "keys"), signed=False)
        self._rollout("init")

    def bring_root(self, guest: Guest) -> None:
        """Tell a machine whom to trust."""
        guest.mkdir(str(Path(_ROOT).parent))
        guest.write(_ROOT, (self._directory / "root.json").read_text())

    def next_version(self) -> int:
        """One above all that were published."""
        return self._versions + 1

    def publish(self, version: int, knobs: Knobs, *, expires_s: int = 3600) -> int:
        """Sign a bundle; nobody follows it yet."""
        now = datetime.now(UTC).replace(microsecond=0)
        lines = ["schema = 1", f"version = {version}", f'id = "lab-{version}"']
        lines += [f"created = {_toml(now)}", f"expires = {_toml(now + timedelta(seconds=expires_s))}"]
        for table, values in knobs.items():
            lines += [f"[knobs.{table}]", *(f'{name} = "{value}"' for name, value in values.items())]
        bundle = self._directory / f"bundle-{version}.toml"
        bundle.write_text("\n".join(lines) + "\n")
        self._rollout("publish", str(bundle))
        self._versions = max(self._versions, version)
        return version

    def assign(
        self, *, bundle: int | None, share: str, control: str, previous: int | None = None, stage: str = "all"
    ) -> None:
        """Say who follows what."""
        told = ["--rollout", _ROLLOUT, "--share", share, "--control", control]
        told += [] if bundle is None else ["--bundle", str(bundle)]
        told += [] if previous is None else ["--previous", str(previous)]
        self._rollout("assign", *told, "--stage", stage)

    def place(self, machine: str) -> float:
        """Where a machine is in the fleet, from 0 to 1: stages take those below their share."""
        where = ["--store", _URL, "--root", str(self._directory / "root.json")]
        told = self.store.run(
            self._program, "rollout", "which", machine, "--cluster", "lab", *where, "--format", "json"
        )
        return int(json.loads(told)["place_ppm"]) / 1e6

    def newest(self, role: str) -> Path:
        """The newest metadata file of a role, such as `targets.json`, whose names begin with their versions."""
        files = [path for path in self.metadata.iterdir() if path.name.endswith(f".{role}")]
        return max(files, key=lambda path: int(path.name.split(".", 1)[0]))

    def snapshot(self) -> Path:
        """A copy of the repository, for `restore`."""
        copy = Path(tempfile.mkdtemp(dir=self._directory)) / "rollout"
        shutil.copytree(self.metadata.parent, copy)
        return copy

    def restore(self, copy: Path) -> None:
        """Put the repository back to what it was."""
        shutil.rmtree(self.metadata.parent)
        shutil.copytree(copy, self.metadata.parent)

    def _rollout(self, command: str, *arguments: str, signed: bool = True) -> None:
        where = ["--store", _URL, "--root", str(self._directory / "root.json"), "--keys", str(self._directory / "keys")]
        self.store.run(self._program, "rollout", command, *(where if signed else []), *arguments)


def _toml(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
