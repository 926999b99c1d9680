"""`python -m mx_rmq.cli`: the same as `mx-rmq`."""

from __future__ import annotations

from mx_rmq.cli import main

if __name__ == "__main__":
    main(prog_name="mx-rmq")
