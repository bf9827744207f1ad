"""The fleet model and the pooling simulator on a cluster.

A task gets the names of trace files and returns the bytes of a tally: the exact sums of its part. Tallies are added up as a
tree. The engine moves names and sums and never rows: an engine that re-batches rows splits a job's series, which resets its
controller without notice.

The tasks run the command `thermocline model`, so that nothing is built or installed besides the binary that all machines
have. The result is bit-identical to that of one machine.

The simulator is distributed by configuration (`simulation`); `sweep` runs it on one machine or on a cluster.
"""

from .kernel import Killed, Model, Refused, Share
from .simulation import Part, Simulation, sweep
from .tree import add_up

__all__ = ["Killed", "Model", "Part", "Refused", "Share", "Simulation", "add_up", "sweep"]
