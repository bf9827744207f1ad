"""The fleet model as one would write it in numpy, numba and SQL, on the same trace, with the same answer."""
