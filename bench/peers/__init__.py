"""The fleet model written in numpy, numba and SQL, on the same trace with the same result."""
