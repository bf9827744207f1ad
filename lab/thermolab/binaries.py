"""The project's programs for guests: static, so that they need nothing of the guest's root file system."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .cache import say
from .errors import LabError
from .paths import TREE

_TARGET = "x86_64-unknown-linux-gnu"

# Name in the guest, package, folder of the package.
_PROGRAMS = (
    ("labguest", "thermocline-lab-guest", "lab/guest"),
    ("thermocline", "thermocline", "crates/thermocline"),
)


def build(features: Sequence[str] = ()) -> dict[str, Path]:
    """Build what this checkout has of the programs; name in the guest to file here.

    `features` are those that `thermocline` is built with, such as `s3`, beside its defaults.

    Raises:
        LabError: cargo is missing or failed; its own output, on standard error, says why.
    """
    present = [(name, package) for name, package, folder in _PROGRAMS if (TREE / folder / "Cargo.toml").is_file()]
    # A directory of its own: other flags than `cargo build` uses would rebuild everything each time.
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
        raise LabError(f"`{' '.join(argv)}` ended with status {status} in {TREE}")
    return {name: target / _TARGET / "release" / name for name, _ in present}
