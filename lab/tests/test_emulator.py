"""The script that runs the newer QEMU; without a guest."""

import subprocess
from pathlib import Path

import pytest

from thermolab import emulator


def test_the_script_runs_qemu_with_its_own_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = tmp_path / "a tree"
    loader = base / "usr" / "lib64" / "ld-linux-x86-64.so.2"
    loader.parent.mkdir(parents=True)
    loader.write_text('#!/bin/sh\necho "$QEMU_MODULE_DIR" "$@"\n')
    loader.chmod(0o755)
    monkeypatch.setattr(emulator, "tree", lambda: base)
    program = emulator.program(tmp_path / "qemu")
    output = subprocess.run([program, "-name", "a b"], capture_output=True, text=True, check=True).stdout
    libraries = f"{base}/usr/lib/x86_64-linux-gnu"
    assert output.startswith(f"{libraries}/qemu --library-path {libraries} {base}/usr/bin/qemu-system-x86_64 -L ")
    assert output.endswith(f"-L {base}/usr/share/seabios -name a b\n")
