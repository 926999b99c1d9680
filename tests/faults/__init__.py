"""The fault lab: real faults against real servers and processes, and what must hold after them.

Each kind of fault is a file with a `FAULT`; `campaign.py` runs them, `report.py` writes
docs/reliability.md. `make test` runs a short version of each, `make faults` the full one.
"""
