"""Every promise of docs/safety.md and docs/threat-model.md names a test that exists."""

import re

import pytest

from thermolab import runner
from thermolab.paths import TREE


@pytest.mark.parametrize(("page", "columns", "fewest"), [("safety.md", 2, 20), ("threat-model.md", 3, 15)])
def test_the_tests_of_the_promises_exist(page: str, columns: int, fewest: int) -> None:
    rows = [line.split("|")[1:-1] for line in (TREE / "docs" / page).read_text().splitlines() if line.startswith("| ")]
    assert all(len(row) == columns for row in rows), "every table of the page is one of promises"
    promises = [row[-1] for row in rows if row[-1].strip() != "test"]
    assert len(promises) > fewest
    rust = "\n".join(path.read_text() for folder in ("crates", "fuzz") for path in (TREE / folder).rglob("*.rs"))
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
