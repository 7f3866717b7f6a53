"""How a scheduler is, as it tells about itself without asking anybody."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VitalSigns:
    """One look at a scheduler.

    Attributes:
        is_draining: it claims nothing any more.
        is_listening: wake-ups come in; without them jobs wait for its polling.
        slowest_pass_seconds: how long the longest pass of a loop that is under way has taken.
        dead_loops: names of loops that have ended though nobody stopped them.
    """

    is_draining: bool
    is_listening: bool
    slowest_pass_seconds: float = 0.0
    dead_loops: tuple[str, ...] = ()
