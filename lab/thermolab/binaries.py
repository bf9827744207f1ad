"""The project's programs for guests, linked statically so that they need no libraries of the root file system."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .cache import say
from .errors import LabError
from .paths import TREE

_TARGET = "x86_64-unknown-linux-gnu"

# Name in the guest, package, directory of the package.
_PROGRAMS = (
    ("labguest", "thermocline-lab-guest", "lab/guest"),
    ("thermocline", "thermocline", "crates/thermocline"),
)


def build(features: Sequence[str] = ()) -> dict[str, Path]:
    """Builds the programs that this checkout contains; returns their files by name in the guest.

    `features` are cargo features of `thermocline`, such as `s3`, in addition to its defaults.

    Raises:
        LabError: cargo is missing or failed; cargo prints the reason to standard error.
    """
    present = [(name, package) for name, package, folder in _PROGRAMS if (TREE / folder / "Cargo.toml").is_file()]
    # A separate directory: `cargo build` uses other flags, and sharing would rebuild everything each time.
    target = Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target" / "lab-build"))
    target = target.with_name("-".join([target.name, *features]))
    argv = ["cargo", "build", "--release", "--locked", "--target", _TARGET]
    for _, package in present:
        argv += ["--package", package]
    for feature in features:
        argv += ["--features", f"thermocline/{feature}"]
    say(f"building static {' and '.join(name for name, _ in present)}")
    env = {**os.environ, "CARGO_TARGET_DIR": str(target), "RUSTFLAGS": "-C target-feature=+crt-static"}
    try:
        status = subprocess.run(argv, cwd=TREE, env=env, stdin=subprocess.DEVNULL, check=False).returncode
    except FileNotFoundError as error:
        raise LabError("cargo is not installed: get Rust from https://rustup.rs") from error
    if status != 0:
        raise LabError(f"`{' '.join(argv)}` exited with status {status} in {TREE}")
    return {name: target / _TARGET / "release" / name for name, _ in present}
