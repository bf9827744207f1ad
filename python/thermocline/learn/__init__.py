"""The predictions behind a memory pool (004 section 4.4): how much of a VM's memory stays untouched, and who feels no latency.

Parts, each a value handed to the next:

- `vms`: what is known of VMs, as columns; `generate` makes them up, fitted to published figures.
- `history`, `features`: what a model may know about a VM when it is asked for.
- `untouched`: quantile regression, trained every night on what has ended, looked at on the day after.
- `workloads`, `insensitive`: a random forest on top-down counters, against one-counter heuristics.
- `curves`: mispredictions against memory, and the best pair of both models (Eq. 1); pure.
- `export`: models as ONNX, with all that serving needs in their metadata. They are served by Rust (`crates/pool/predict`).
- `bitbrains`: the same model on real memory use.
"""
