"""Python imports this in each rank: see child_processes.for_torchrun."""

import atexit
import time

atexit.register(time.sleep, 0.3)  # which lets go of the GIL
