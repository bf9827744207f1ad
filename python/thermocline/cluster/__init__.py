"""The fleet model, and the pooling simulator, on a cluster.

A task is given the names of trace files and gives back the bytes of a tally: the exact sums of its part. Tallies are added
up as a tree. The engine moves names and sums and never sees a row, for an engine that batches rows anew cuts a job's series,
and its controller would begin again without anybody noticing.

The kernel is the command `thermocline model` itself: nothing is to be built or installed for it beside the binary that all machines
have, and what it answers on a cluster is what it answers on one machine, to the bit.

The simulator is spread by configuration (`simulation`): `sweep` is the one function for one machine and for a cluster.
"""

from .kernel import Killed, Model, Refused, Share
from .simulation import Part, Simulation, sweep
from .tree import add_up

__all__ = ["Killed", "Model", "Part", "Refused", "Share", "Simulation", "add_up", "sweep"]
