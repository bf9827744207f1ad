"""Packages of another Debian suite than the machine's own, fetched and unpacked without installing anything.

apt gets a private state: its own lists, sources and caches, kept in the lab's cache. What the machine's
administrator set in apt.conf (proxies, certificates, credentials) stays in force, as does the mirror that the
machine already uses.
"""

import os
import re
from pathlib import Path

from .cache import call, locked, say
from .errors import LabError

SUITES = ("trixie", "trixie-backports")
"""Debian 13 and its backports: the oldest release with both kernels that the lab boots."""

MIRROR_VARIABLE = "THERMOCLINE_DEBIAN_MIRROR"

_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)


def mirror() -> str:
    """URL of a Debian archive: the environment's, else the one that this machine's apt uses.

    Raises:
        LabError: the machine's apt knows no Debian archive (Ubuntu, or lists never fetched).
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
            "this machine's apt uses no Debian archive, and the lab's kernels and root file system come from one: "
            f"run `apt-get update` if this is Debian, else set {MIRROR_VARIABLE} to the URL of a Debian mirror"
        )
    return found


def main_archive(targets: str) -> str | None:
    """URL of Debian's main archive among the lines `URI|component|origin|label` of `apt-get indextargets`."""
    for line in targets.splitlines():
        fields = line.split("|")
        if len(fields) == 4 and fields[1:] == ["main", "Debian", "Debian"]:
            return fields[0]
    return None


def keyring() -> Path:
    """File with the keys that sign Debian's archive.

    Raises:
        LabError: the package `debian-archive-keyring` is not installed.
    """
    for path in _KEYRINGS:
        if path.exists():
            return path
    raise LabError(f"{_KEYRINGS[0]} does not exist: run lab/setup, or install debian-archive-keyring")


def source_line(suite: str) -> str:
    """One line of sources.list for the main component of `suite`."""
    return f"deb [arch=amd64 signed-by={keyring()}] {mirror()} {suite} main"


def newest(names: list[str]) -> str | None:
    """The package whose name carries the highest version number, compared number by number."""
    return max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], default=None)


class Archive:
    """apt under a private state in `directory`; lists are fetched on first use, once per object."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._updated = False

    def names(self, pattern: str) -> list[str]:
        """Packages whose whole name matches the regular expression `pattern`."""
        self._update()
        lines = self._apt(["apt-cache", "search", "--names-only", f"^{pattern}$"]).splitlines()
        return [line.split(" - ", 1)[0] for line in lines]

    def unpack(self, package: str, into: Path) -> None:
        """Download `package` and unpack it under `into`; nothing is installed."""
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
        # apt reads $APT_CONFIG first and the file named by Dir::Etc::main last: the first points at the last, so
        # that what stands there wins over the machine's own settings while those still apply.
        last = self._directory / "last.conf"
        (self._directory / "first.conf").write_text(f'Dir::Etc::main "{last}";\n')
        include = '#include "/etc/apt/apt.conf";\n' if Path("/etc/apt/apt.conf").exists() else ""
        last.write_text(
            f"{include}"
            # Hooks act on the machine's own caches.
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
            # As root apt would download as the user _apt, who may not enter a private cache.
            'APT::Sandbox::User "root";\n'
        )

    def _apt(self, argv: list[str], cwd: Path | None = None) -> str:
        return call(argv, cwd=cwd, env={"APT_CONFIG": str(self._directory / "first.conf")})
