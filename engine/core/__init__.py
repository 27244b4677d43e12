"""Scheduler and block manager as a sans-IO state machine: no clock, no I/O, no torch, no asyncio."""
