"""Driving a tier of host memory behind the device, and the copies in both directions: the stem ``host_tier``."""
