"""Models as ONNX files with all parameters of serving in their metadata. `crates/pool/predict` reads this format."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import features, history, insensitive, untouched

KEY = "thermocline"
"""The metadata key of our parameters, which are JSON."""

SCHEMA = 1

VALID_SECONDS = 3 * 86_400
"""Validity of a model after its training. Two nightly trainings may fail."""

_OPSET = 15
"""A version that all runtimes in use support, with tree ensembles in 32-bit floats."""


def untouched_model(of: untouched.Trained, target: float) -> Any:
    """Returns the untouched-memory model as ONNX."""
    from onnxmltools.convert import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    shape = [("features", FloatTensorType([None, len(features.NAMES)]))]
    with _quiet():
        model = convert_lightgbm(of.booster, initial_types=shape, target_opset=_OPSET)
    return _with_metadata(
        model,
        {
            "kind": "untouched",
            "features": _ranges(features.NAMES, of.low, of.high),
            "categories": {name: dict(means) for name, means in of.encoding.means.items()},
            "history": {
                "window_seconds": history.WINDOW_SECONDS,
                "entries_min": history.ENTRIES_MIN,
                "entries_max": history.ENTRIES_MAX,
                "percentiles": list(history.PERCENTILES),
            },
            "quantile": of.quantile,
            "lowered_ratio": of.lowered,
            "target_ratio": target,
            "trained_until": of.trained_until,
            "valid_seconds": VALID_SECONDS,
            "trained_on": of.vms,
        },
    )


def insensitive_model(of: insensitive.Trained, target: float) -> Any:
    """Returns the latency-insensitivity model as ONNX."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    shape = [("counters", FloatTensorType([None, len(of.counters)]))]
    with _quiet():
        model = convert_sklearn(
            of.forest, initial_types=shape, options={id(of.forest): {"zipmap": False}}, target_opset={"": _OPSET, "ai.onnx.ml": 3}
        )
    return _with_metadata(
        model,
        {
            "kind": "insensitive",
            "features": _ranges(of.counters, of.low, of.high),
            "threshold": of.threshold,
            "latency_ratio": of.latency,
            "pdm_ratio": of.pdm,
            "target_ratio": target,
        },
    )


def write(model: Any, path: Path) -> int:
    """Writes a model atomically. Returns its size in bytes."""
    data: bytes = model.SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    beside.replace(path)
    return len(data)


def metadata(path: Path) -> dict[str, Any]:
    """Returns our metadata of a model file.

    Raises:
        ValueError: the file is not an ONNX model with our metadata.
    """
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # The library raises any exception of its parser.
        raise ValueError(f"{path}: not an ONNX model: {error}") from error
    for one in model.metadata_props:
        if one.key == KEY:
            return dict(json.loads(one.value))
    raise ValueError(f"{path}: the ONNX model has no metadata {KEY!r}; create it with `thermocline-learn train`")


def run(model: Any, inputs: Any) -> Any:
    """Returns the predictions of ONNX Runtime: untouched shares, or probabilities of being insensitive."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    data = session.run(None, {session.get_inputs()[0].name: inputs.astype(np.float32)})[-1]
    return data[:, 0] if data.shape[1] == 1 else data[:, 1]


def _ranges(names: Sequence[str], low: Any, high: Any) -> list[dict[str, Any]]:
    return [{"name": name, "low": float(a), "high": float(b)} for name, a, b in zip(names, low, high, strict=True)]


def _with_metadata(model: Any, data: Mapping[str, Any]) -> Any:
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps({"schema": SCHEMA, **data}, sort_keys=True)
    return model


@contextlib.contextmanager
def _quiet() -> Any:
    """Suppresses irrelevant output and warnings of the converters."""
    logging.getLogger("skl2onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
