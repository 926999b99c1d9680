"""The command line. Signals, log configuration and exit codes live here and nowhere else."""
