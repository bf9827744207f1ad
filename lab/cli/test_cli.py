"""Every command answers a mistake with a sentence and a status other than 0, and never with a panic or a false success.

The program is that of the environment variable THERMOCLINE. Nothing of this machine is changed: the configuration is an
empty file, and its directories are temporary.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

PROGRAM = os.environ.get("THERMOCLINE", "thermocline")
SECONDS_MAX = 60
STATUSES = {0, 1, 2, 3, 125, 126, 127}
"""0: done. 1: failed. 2: wrong arguments. 3: the answer is no (`doctor`, `replay`). 125 and more: `run`."""

GROUPS = ("This machine", "What if", "Fleet", "Pool", "Configuration and documentation")
"""Headings of the list of commands."""

BAD_FILES = {
    "missing": None,
    "empty": b"",
    "garbage": bytes(range(256)) * 16,
    "no newline": b"0",
    "text": b"no such\nformat: at all\n",
    "parquet's head": b"PAR1" + bytes(64) + b"PAR1",
}

# Arguments in which {} is a file that a user names; the command must refuse each of BAD_FILES.
READ_FILES = [
    "replay {}",
    "import {}",
    "plan {}",
    "report {}",
    "arena --trace {}",
    "trace list {}",
    "trace show {}",
    "trace validate {}",
    "trace export {}",
    "trace merge {} --to {out}",
    "trace compact {} --to {out}",
    "trace anonymise {} --to {out}",
    "model --trace {}",
    "model --trace-list {}",
    "model --merge {}",
    "experiment --trace {} --a machine=a --b machine=b",
    "config check --config {}",
    "config show --config {}",
    "pool show {}",
    "pool stranding --trace {}",
    "pool simulate --trace {}",
    "pool import {} --out {out}",
    "pool predict --model {} --request {request}",
    "pool manager --config {}",
    "pool host --config {}",
    "rollout plan {}",
    "rollout publish {} --store {store} --root {root} --keys {store}",
]

EMPTY_IS_VALID = ["config check --config {}", "config show --config {}", "rollout plan {}"]
"""Every setting has a default."""

EMPTY_DIRECTORY = ["trace list {}", "trace show {}", "trace validate {}", "trace export {}", "model --trace {}"]


@cache
def commands() -> tuple[tuple[str, ...], ...]:
    """Returns all commands without subcommands, as their words."""

    def leaves(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        text = run([*words, "--help"]).stdout
        sections = re.findall(r"^([A-Z][A-Za-z ]+):\n((?:  .*\n|\n(?=  ))+)", text, re.MULTILINE)
        groups = [body for heading, body in sections if heading == "Commands" or heading in GROUPS]
        names = [name for body in groups for name in re.findall(r"^  (\S+)", body, re.MULTILINE) if name != "help"]
        if not names:
            yield words
        for name in names:
            yield from leaves((*words, name))

    return tuple(leaves(()))


def run(
    arguments: list[str], stdout: int = subprocess.PIPE, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the program without standard input."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("THERMOCLINE_", "RUST_"))}
    return subprocess.run(
        [PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=SECONDS_MAX,
        env=environment,
        cwd=directory,
        check=False,
    )


def configured(directory: Path) -> list[str]:
    """Returns arguments that keep the program within a directory."""
    file = directory / "thermocline.toml"
    file.write_text(f'[agent]\nstate_dir = "{directory}/state"\nruntime_dir = "{directory}/run"\n')
    return ["--config", str(file)]


def places(directory: Path) -> dict[str, Path]:
    """Returns what stands for other arguments: an output, an empty store, and files that are in order."""
    request, root, store = directory / "request.json", directory / "root.json", directory / "store"
    request.write_text("[]")
    root.write_text("{}")
    store.mkdir(exist_ok=True)
    return {"out": directory / "out", "request": request, "root": root, "store": store}


def explained(done: subprocess.CompletedProcess[str], *allowed: int) -> str:
    """Checks that a command ended in an orderly way; returns what it wrote to standard error."""
    assert "panicked" not in done.stderr, f"{done.args}: {done.stderr}"
    assert done.returncode in (allowed or STATUSES), f"{done.args}: status {done.returncode}: {done.stderr}"
    if done.returncode not in (0, 2):
        assert (done.stderr + (done.stdout or "")).strip(), f"{done.args}: status {done.returncode} without a word"
    return done.stderr


def test_the_commands_are_found() -> None:
    """The list that the other tests go through is not empty by mistake."""
    assert len(commands()) > 40
    assert ("pool", "vm", "start") in commands() or any(words[:2] == ("pool", "vm") for words in commands())


def test_every_command_has_help() -> None:
    """Each help says what the command does and how it is used."""
    for words in commands():
        done = run([*words, "--help"])
        assert done.returncode == 0 and "Usage: thermocline" in done.stdout, words


BRIEFLY = {
    ("observe",): ["--for", "1s"],
    ("arena",): ["--workload", "drift", "--law", "script"],
    ("rollout", "rehearse"): ["--machines", "20"],
    ("reproduce",): ["--list"],
    # Beyond loopback it needs a token.
    ("console",): ["--listen", "0.0.0.0:9181"],
}
"""Arguments of commands that would go on, or compute for long."""


def test_without_arguments(tmp_path: Path) -> None:
    """A command that needs arguments says so; others work or say what they lack."""
    for words in commands():
        own = [] if is_without_configuration(words) else configured(tmp_path)
        explained(run([*words, *BRIEFLY.get(words, []), *own], directory=tmp_path))


def is_without_configuration(arguments: Iterable[str]) -> bool:
    """Returns whether a command, the first words of its arguments, refuses the agent's configuration."""
    words = takewhile(str.isalpha, arguments)
    return "--set <KEY=VALUE>" not in run([*words, "--help"]).stdout


def test_unknown_arguments() -> None:
    """An option that does not exist is named."""
    for words in commands():
        assert "--no-such" in explained(run([*words, "--no-such"]), 2), words


@pytest.mark.parametrize("arguments", READ_FILES)
def test_files_that_cannot_be_used(arguments: str, tmp_path: Path) -> None:
    """A file that is missing, empty or something else is an error that names it."""
    for name, content in BAD_FILES.items():
        if name == "empty" and arguments in EMPTY_IS_VALID:
            continue
        path = tmp_path / f"given {name}"
        if content is not None:
            path.write_bytes(content)
        words = [word.format(path, **places(tmp_path)) for word in arguments.split()]
        own = [] if "--config" in words or is_without_configuration(arguments.split()) else configured(tmp_path)
        done = run([*words, *own], directory=tmp_path)
        stderr = explained(done, 1, 3)
        assert "given" in stderr + done.stdout, f"{words}: the file is not named: {stderr}"
        assert not (tmp_path / "out").exists(), f"{words}: an output was left"


@pytest.mark.parametrize("arguments", EMPTY_DIRECTORY)
def test_nothing_found(arguments: str, tmp_path: Path) -> None:
    """A store without a trace is not an answer of zeros."""
    store = tmp_path / "store"
    store.mkdir()
    explained(run([*arguments.format(store).split(), *configured(tmp_path)], directory=tmp_path), 1, 2, 3)


PRINTING = [
    *("--help", "config show", "config example", "doctor", "model --generate 12", "completions bash"),
    "arena --workload drift --law script",
    "reproduce --list",
]


@pytest.mark.parametrize("arguments", [*PRINTING, *(f"completions {shell}" for shell in ("zsh", "fish", "elvish"))])
def test_output_that_cannot_be_written(arguments: str, tmp_path: Path) -> None:
    """A full disk is an error; a reader that has gone is none."""
    unconfigured = arguments == "--help" or is_without_configuration(arguments.split())
    words = [*arguments.split(), *([] if unconfigured else configured(tmp_path))]
    with Path("/dev/full").open("wb") as full:
        done = run(words, stdout=full.fileno(), directory=tmp_path)
    explained(done, *(STATUSES - {0}) if arguments != "--help" else STATUSES)
    reader, writer = os.pipe()
    os.close(reader)
    done = run(words, stdout=writer, directory=tmp_path)
    os.close(writer)
    assert "panicked" not in done.stderr, done.stderr
    assert done.returncode in STATUSES | {-signal.SIGPIPE}, f"{words}: status {done.returncode}"


def test_an_interrupt_ends_long_work(tmp_path: Path) -> None:
    """Ctrl-C ends a replay at once, and is no success."""
    words = [PROGRAM, "model", "--generate", "200000", "--days", "30", *configured(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(2)
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=SECONDS_MAX)
    assert running.returncode != 0 and "panicked" not in stderr, (running.returncode, stderr)
