"""A guest's pool memory is predicted by trained models: request, prediction, slices, and a guest that runs on them.

The models are ONNX files from `thermocline-learn`, evaluated by the host (Pond section 4.3 A). A guest whose
customer has a history gets the predicted untouched memory, in whole slices; a guest without data gets local memory
only. The host's decision is compared with that of `thermocline pool predict` for the same request.
"""

import json
from typing import Any

from thermolab import znuma
from thermolab.lab import Lab
from thermolab.paths import TREE
from thermolab.pool import SLICE_MIB, Pool, Watch
from thermolab.pool_guest import PoolGuest, Vm
from thermolab.qemu import MIB

KERNELS = ("6.12",)

MODELS = TREE / "crates" / "pool" / "predict" / "testdata"
SLICES = 8
MEMORY_MIB = 4096
"""Size of the smallest guests in the training data; untouched memory costs nothing under emulation."""
CORES = 2
KNOWN = {
    "customer": 5,
    "vm_type": "F2",
    "guest_os": "linux-c",
    "location": "region-e",
    "arrival": 731_454,
    "history": [0.6, 0.5, 0.6, 0.4, 0.6, 0.6, 0.6, 0.6],
}
UNKNOWN = {"customer": 5, "vm_type": "F2", "guest_os": "plan9", "location": "region-e"}


def run(lab: Lab) -> dict[str, Any]:
    """Runs one guest that the models have data for, and one that they do not."""
    models = f'[predict]\nuntouched = "{MODELS}/untouched.onnx"\ninsensitive = "{MODELS}/insensitive.onnx"\n'
    with Pool(lab, SLICES) as pool:
        host = pool.host("host-a", Watch(attempts=0), local_mib=2 * MEMORY_MIB, more=models)
        ratio = _predicted(pool)
        with PoolGuest(host, Vm("known", MEMORY_MIB, None, cpus=CORES, about=KNOWN)) as guest:
            known, node = host.explain("known"), znuma.node_bytes(guest, 1)
            seen = znuma.observe(host, guest, 2)
            start_seconds = guest.start_seconds
        with PoolGuest(host, Vm("unknown", MEMORY_MIB, None, cpus=CORES, about=UNKNOWN)) as guest:
            unknown, without = host.explain("unknown"), znuma.node_bytes(guest, 1)
    slices = int(ratio * MEMORY_MIB / SLICE_MIB)
    lab.say(f"{ratio:.1%} of {MEMORY_MIB} MiB untouched, by the model: {slices} slices; {known['events'][0]['what']}")
    figures = {
        "untouched_ratio": ratio,
        "slices": known["share"]["slices"],
        "node_bytes": node,
        "pool_touched_ratio": seen.figures()["pool_touched_ratio"],
        "start_seconds": start_seconds,
        "unknown": unknown["share"]["why"],
    }
    lab.at_least("slices", slices, 1)
    lab.holds("share", known["share"]["slices"] == slices, f"the host took {known['share']}")
    lab.holds("why", known["share"]["why"] == "untouched", f"the host's reason is {known['share']['why']}")
    lab.holds("mapped", len(known["mapped"]) == slices, f"{len(known['mapped'])} slices are mapped")
    lab.at_least("node_bytes", node, slices * SLICE_MIB * MIB)
    actual = (unknown["share"]["why"], unknown["share"]["slices"], without)
    lab.holds("unknown", actual == ("no_prediction", 0, 0), f"a guest without a prediction got {actual}")
    return figures


def _predicted(pool: Pool) -> float:
    """Returns the model's prediction for the first guest, from `thermocline pool predict`."""
    request = pool.directory / "request.json"
    request.write_text(json.dumps({**KNOWN, "cores": CORES, "memory_bytes": MEMORY_MIB * MIB}))
    models = ("--model", f"{MODELS}/untouched.onnx", "--insensitive", f"{MODELS}/insensitive.onnx")
    answer = json.loads(pool.command("pool", "predict", *models, "--request", str(request), "--format", "json"))
    return float(answer["decisions"][0]["untouched_ratio"])
