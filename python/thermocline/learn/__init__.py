"""The predictions behind a memory pool (Pond section 4.4): untouched memory of VMs, and insensitivity to latency.

Modules, in the order of the data flow:

- `vms`: VMs as columns; `generate` generates them, fitted to published figures.
- `history`, `features`: what a model knows about a VM when it is requested.
- `untouched`: quantile regression, trained every night on the VMs that have ended, evaluated on the day after.
- `workloads`, `insensitive`: a random forest on top-down counters, compared with one-counter heuristics.
- `curves`: mispredictions against memory, and the best pair of settings of both models (Eq. 1); pure.
- `export`: models as ONNX with all parameters of serving in their metadata. `crates/pool/predict` serves them.
- `bitbrains`: the untouched-memory model on real memory use.
"""
