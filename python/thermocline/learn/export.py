"""Models as ONNX, with all that serving needs in their metadata; `crates/pool/predict` is the other side of this format."""

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
"""The key of the model's metadata under which ours are, as JSON."""

SCHEMA = 1

VALID_SECONDS = 3 * 86_400
"""How long after its training a model is believed: two nights of training may fail."""

_OPSET = 15
"""Old enough for every runtime in use, with tree ensembles in 32-bit floats."""


def untouched_model(of: untouched.Trained, target: float) -> Any:
    """The untouched-memory model as ONNX."""
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
            "target_ratio": target,
            "trained_until": of.trained_until,
            "valid_seconds": VALID_SECONDS,
            "trained_on": of.vms,
        },
    )


def insensitive_model(of: insensitive.Trained, target: float) -> Any:
    """The latency-insensitivity model as ONNX."""
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
    """Writes a model whole or not at all; returns its size in bytes."""
    told: bytes = model.SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(told)
    beside.replace(path)
    return len(told)


def metadata(path: Path) -> dict[str, Any]:
    """Our metadata of a model's file.

    Raises:
        ValueError: the file is no ONNX model of ours.
    """
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # The library raises what its parser raises.
        raise ValueError(f"{path}: not an ONNX model: {error}") from error
    for one in model.metadata_props:
        if one.key == KEY:
            return dict(json.loads(one.value))
    raise ValueError(f"{path}: an ONNX model, but without the metadata {KEY!r}; write one with `python -m thermocline.learn train`")


def run(model: Any, inputs: Any) -> Any:
    """What ONNX Runtime answers: promised shares, or probabilities of being insensitive."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    told = session.run(None, {session.get_inputs()[0].name: inputs.astype(np.float32)})[-1]
    return told[:, 0] if told.shape[1] == 1 else told[:, 1]


def _ranges(names: Sequence[str], low: Any, high: Any) -> list[dict[str, Any]]:
    return [{"name": name, "low": float(a), "high": float(b)} for name, a, b in zip(names, low, high, strict=True)]


def _with_metadata(model: Any, told: Mapping[str, Any]) -> Any:
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps({"schema": SCHEMA, **told}, sort_keys=True)
    return model


@contextlib.contextmanager
def _quiet() -> Any:
    """The converters print and warn about what is no concern of ours."""
    logging.getLogger("skl2onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
