"""What a job starts and leaves behind: a process that says again and again that it still lives.

    python -I -S grandchild.py WITNESS_FILE RUN

Alone on purpose, so that it starts in some milliseconds; the lines are those of soak.witness.
"""

import os
import sys
import time

TICKS = 1_200  # two minutes: if nobody ends it, it goes by itself

path, run = sys.argv[1:]
file = os.open(path, os.O_WRONLY | os.O_APPEND)
for _ in range(TICKS):
    instant = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(file, f"{instant:.6f} {run} child 0\n".encode())
    time.sleep(0.1)
