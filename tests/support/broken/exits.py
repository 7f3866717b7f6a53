"""Its import ends the interpreter, as a script without a main guard does."""

import sys

sys.exit(5)
