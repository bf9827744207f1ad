"""Parsing of quantities on the command line, in the notation of configuration files: `0.2%`, `10m`, `64MiB`."""

from __future__ import annotations

import argparse
from decimal import Decimal, InvalidOperation

_UNITS: dict[str, int | str] = {
    "%": "0.01", "us": "1e-6", "ms": "1e-3", "s": 1, "m": 60, "h": 3600, "d": 86_400,
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def number(text: str) -> float:
    """Parses a quantity in base units: shares of one, seconds, bytes."""
    digits = text.strip().removesuffix("/s")
    unit = digits.lstrip("0123456789.eE+-")
    # An `e` is part of an exponent: no unit begins with it.
    try:
        # Decimal arithmetic: 95 hundredths are 0.95, and not 0.9500000000000001.
        value = float(Decimal(digits.removesuffix(unit)) * Decimal(_UNITS[unit] if unit else 1))
    except (InvalidOperation, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a quantity; write it like 0.2%, 10m, 64MiB or 0.002") from None
    return value


def ratio(text: str) -> float:
    """Parses a share of one."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share of one; write it like 0.2% or 0.002")
    return value


def duration(text: str) -> float:
    """Parses a duration in seconds. Refuses a bare number, whose unit would be ambiguous."""
    if text.strip()[-1:].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} has no unit; write it like 90s, 10m or 7d")
    return number(text)


def bounds(text: str) -> tuple[str, tuple[float, float]]:
    """Parses `KEY=LOW..HIGH`."""
    key, equals, both = text.partition("=")
    low, dots, high = both.partition("..")
    if not (equals and dots and key):
        raise argparse.ArgumentTypeError(f"{text!r}; write it like cold_age.promotion_rate=0.1%..0.4%")
    return key, (number(low), number(high))


def setting(text: str) -> tuple[str, str]:
    """Parses `KEY=VALUE`, with the value as in a configuration file."""
    key, equals, value = text.partition("=")
    if not (equals and key):
        raise argparse.ArgumentTypeError(f"{text!r}; write it as KEY=VALUE")
    return key, value
