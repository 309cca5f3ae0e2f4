"""Compute kernels and the index maps that they accept at each input and output."""
