"""The SimPy twin: the same core under simulated time and a cost model."""
