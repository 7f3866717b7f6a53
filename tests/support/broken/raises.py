"""Its import raises."""

raise RuntimeError("no licence for this module")
