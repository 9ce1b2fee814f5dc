"""`python -m trainer_nb`: the command `trainer-nb`, where that is not on the path."""

import sys

from .remote.cli import main

if __name__ == "__main__":
    sys.exit(main())
