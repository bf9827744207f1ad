"""A fleet's operator on the host: keys, bundles and assignments, in a repository on the lab's object store."""

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
    """Returns the agent's settings for following the operator's rollouts."""
    return {
        "rollout.store": _URL,
        "rollout.root": _ROOT,
        "rollout.poll": f"{poll_s}s",
        "trace.cluster": "lab",
        "trace.machine": machine,
    }


class Operator:
    """Publishes with `thermocline rollout`; its keys are in a directory of its own."""

    def __init__(self, store: ObjectStore, program: Path, directory: Path) -> None:
        self.store = store
        self._program = program
        self._directory = directory
        self._versions = 0
        self.metadata = store.directory / BUCKET / "rollout" / "metadata"
        """Directory of the signed metadata, for scenarios that tamper with it."""

    def begin(self) -> None:
        """Creates keys and an empty repository."""
        self._rollout("keygen", str(self._directory / "keys"), signed=False)
        self._rollout("init")

    def install_root(self, guest: Guest) -> None:
        """Installs the repository's root of trust on a machine."""
        guest.mkdir(str(Path(_ROOT).parent))
        guest.write(_ROOT, (self._directory / "root.json").read_text())

    def next_version(self) -> int:
        """Returns the version after the last published one."""
        return self._versions + 1

    def publish(self, version: int, knobs: Knobs, *, expires_s: int = 3600) -> int:
        """Signs and publishes a bundle; no machine is assigned to it yet."""
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
        """Assigns machines to a bundle."""
        options = ["--rollout", _ROLLOUT, "--share", share, "--control", control]
        options += [] if bundle is None else ["--bundle", str(bundle)]
        options += [] if previous is None else ["--previous", str(previous)]
        self._rollout("assign", *options, "--stage", stage)

    def place(self, machine: str) -> float:
        """Returns a machine's place in the fleet, from 0 to 1: a stage includes the places below its share."""
        where = ["--store", _URL, "--root", str(self._directory / "root.json")]
        answer = self.store.run(
            self._program, "rollout", "which", machine, "--cluster", "lab", *where, "--format", "json"
        )
        return int(json.loads(answer)["place_ppm"]) / 1e6

    def newest(self, role: str) -> Path:
        """Returns the newest metadata file of a role, such as `targets.json`; file names begin with versions."""
        files = [path for path in self.metadata.iterdir() if path.name.endswith(f".{role}")]
        return max(files, key=lambda path: int(path.name.split(".", 1)[0]))

    def snapshot(self) -> Path:
        """Returns a copy of the repository, for `restore`."""
        copy = Path(tempfile.mkdtemp(dir=self._directory)) / "rollout"
        shutil.copytree(self.metadata.parent, copy)
        return copy

    def restore(self, copy: Path) -> None:
        """Restores the repository from a copy."""
        shutil.rmtree(self.metadata.parent)
        shutil.copytree(copy, self.metadata.parent)

    def _rollout(self, command: str, *arguments: str, signed: bool = True) -> None:
        where = ["--store", _URL, "--root", str(self._directory / "root.json"), "--keys", str(self._directory / "keys")]
        self.store.run(self._program, "rollout", command, *(where if signed else []), *arguments)


def _toml(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
