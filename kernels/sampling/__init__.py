"""Sampling on the device. Import the modules; nothing is re-exported."""
