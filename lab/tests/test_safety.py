"""Every promise of docs/safety.md names a test that exists."""

import re

from thermolab import runner
from thermolab.paths import TREE


def test_the_tests_of_the_promises_exist() -> None:
    rows = [line.split("|") for line in (TREE / "docs" / "safety.md").read_text().splitlines() if line.startswith("| ")]
    promises = [row[2] for row in rows if len(row) == 4 and row[1].strip() != "promise"]
    assert len(promises) > 20
    rust = "\n".join(path.read_text() for path in (TREE / "crates").rglob("*.rs"))
    makefile = (TREE / "Makefile").read_text()
    for promise in promises:
        names = re.findall(r"`([^`]+)`", promise)
        assert names, promise
        for name in names:
            target = re.fullmatch(r"make ([\w-]+)", name)
            if target:
                assert f"\n{target[1]}:" in makefile, name
            elif re.fullmatch(r"\w+", name):
                assert name in runner.names() or f"fn {name}(" in rust, name
