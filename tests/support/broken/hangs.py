"""Its import never ends."""

import time

time.sleep(3_600)


class Never:
    """Out of reach."""
