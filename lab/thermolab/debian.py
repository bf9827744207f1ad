"""Packages of a Debian suite other than the machine's own, downloaded and unpacked without installation.

apt uses a private state: its own lists, sources and caches, kept in the lab's cache. Settings of the machine's
apt.conf (proxies, certificates, credentials) still apply, and the machine's mirror is used.
"""

import os
import re
from pathlib import Path

from .cache import call, locked, say
from .errors import LabError

SUITES = ("trixie", "trixie-backports")
"""Debian 13 and its backports, the oldest release with both stock kernels that the lab boots."""

MIRROR_VARIABLE = "THERMOCLINE_DEBIAN_MIRROR"

_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)


def mirror() -> str:
    """Returns the URL of a Debian archive: from the environment, else the one in this machine's apt configuration.

    Raises:
        LabError: the machine's apt has no Debian archive (Ubuntu, or lists that were never fetched).
    """
    named = os.environ.get(MIRROR_VARIABLE)
    if named:
        return named
    targets = call(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI)|$(COMPONENT)|$(ORIGIN)|$(LABEL)",
            "Created-By: Packages",
        ]
    )
    found = main_archive(targets)
    if found is None:
        raise LabError(
            "this machine's apt has no Debian archive, which the lab's kernels and root file system are fetched from: "
            f"run `apt-get update` if this is Debian, else set {MIRROR_VARIABLE} to the URL of a Debian mirror"
        )
    return found


def main_archive(targets: str) -> str | None:
    """Returns the URL of Debian's main archive from lines `URI|component|origin|label` of `apt-get indextargets`."""
    for line in targets.splitlines():
        fields = line.split("|")
        if len(fields) == 4 and fields[1:] == ["main", "Debian", "Debian"]:
            return fields[0]
    return None


def keyring() -> Path:
    """Returns the file with the keys that sign Debian's archive.

    Raises:
        LabError: the package `debian-archive-keyring` is not installed.
    """
    for path in _KEYRINGS:
        if path.exists():
            return path
    raise LabError(f"{_KEYRINGS[0]} does not exist: run lab/setup, or install debian-archive-keyring")


def source_line(suite: str) -> str:
    """Returns a line of sources.list for the main component of `suite`."""
    return f"deb [arch=amd64 signed-by={keyring()}] {mirror()} {suite} main"


def newest(names: list[str]) -> str | None:
    """Returns the package name with the highest version number, compared numerically."""
    return max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], default=None)


class Archive:
    """apt with its private state in `directory`; lists are fetched on first use, once per object."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._updated = False

    def names(self, pattern: str) -> list[str]:
        """Returns the packages whose whole name matches the regular expression `pattern`."""
        self._update()
        lines = self._apt(["apt-cache", "search", "--names-only", f"^{pattern}$"]).splitlines()
        return [line.split(" - ", 1)[0] for line in lines]

    def unpack(self, package: str, into: Path) -> None:
        """Downloads `package` and unpacks it under `into`; nothing is installed."""
        self._update()
        download = into / ".download"
        download.mkdir(parents=True)
        say(f"  downloading {package}")
        self._apt(["apt-get", "download", package], cwd=download)
        (archive,) = download.glob("*.deb")
        call(["dpkg-deb", "--extract", archive, into])
        archive.unlink()
        download.rmdir()

    def _update(self) -> None:
        if self._updated:
            return
        with locked(self._directory / "lock"):
            self._configure()
            say("reading Debian's package lists (private apt state)")
            self._apt(["apt-get", "update"])
        self._updated = True

    def _configure(self) -> None:
        for part in ("lists/partial", "cache/archives/partial", "empty"):
            (self._directory / part).mkdir(parents=True, exist_ok=True)
        sources = self._directory / "sources.list"
        sources.write_text("".join(source_line(suite) + "\n" for suite in SUITES))
        # apt reads $APT_CONFIG first and the file named by Dir::Etc::main last. The first file names the last one, so
        # that the settings there override the machine's own, which otherwise apply.
        last = self._directory / "last.conf"
        (self._directory / "first.conf").write_text(f'Dir::Etc::main "{last}";\n')
        include = '#include "/etc/apt/apt.conf";\n' if Path("/etc/apt/apt.conf").exists() else ""
        last.write_text(
            f"{include}"
            # Hooks of the machine act on its own caches.
            "#clear APT::Update::Pre-Invoke;\n"
            "#clear APT::Update::Post-Invoke;\n"
            "#clear APT::Update::Post-Invoke-Success;\n"
            f'Dir::State::Lists "{self._directory / "lists"}";\n'
            f'Dir::Etc::sourcelist "{sources}";\n'
            f'Dir::Etc::sourceparts "{self._directory / "empty"}";\n'
            f'Dir::Etc::preferences "{self._directory / "no-preferences"}";\n'
            f'Dir::Etc::preferencesparts "{self._directory / "empty"}";\n'
            f'Dir::Cache "{self._directory / "cache"}";\n'
            'Acquire::Languages "none";\n'
            'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";\n'
            'Acquire::Retries "3";\n'
            'APT::Architecture "amd64";\n'
            'APT::Architectures "amd64";\n'
            # As root, apt would download as the user _apt, who has no access to a private cache.
            'APT::Sandbox::User "root";\n'
        )

    def _apt(self, argv: list[str], cwd: Path | None = None) -> str:
        return call(argv, cwd=cwd, env={"APT_CONFIG": str(self._directory / "first.conf")})
