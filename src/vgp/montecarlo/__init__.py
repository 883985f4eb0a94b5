"""What q is measured against: exact answers by enumeration."""

from .enumeration import (
    Enumerated as Enumerated,
    enumerate_states as enumerate_states,
    enumerated as enumerated,
    kl as kl,
)
