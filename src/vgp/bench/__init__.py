"""Measurements that a user can repeat: `vgp bench`. One file each, with what they share in `measure.py`."""
