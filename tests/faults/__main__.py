"""Runs the campaign."""

import sys

from tests.faults.campaign import main

if __name__ == "__main__":
    sys.exit(main())
