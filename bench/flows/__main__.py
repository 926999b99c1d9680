"""Compare flows and steps with peers: `python -m bench.flows [times|kill] [NAME …]`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from bench.environments import CACHE, Environments
from bench.flows.measure import after_a_kill, times
from bench.flows.servers import postgres, valkey
from bench.systems import System

HERE = Path(__file__).parent
SCRIPTS = {
    "ours": ("ours.py", valkey),
    "bullmq": ("bullmq_flow.mjs", valkey),
    "celery": ("celery_canvas.py", valkey),
    "streaq": ("streaq_pipeline.py", valkey),
    "dbos": ("dbos_workflow.py", postgres),
    "absurd": ("absurd_task.py", postgres),
}


def lines(script: Path, part: str) -> int:
    text = re.search(rf"begin {part}\n(.*?)\n(?:#|//) (?:begin|end)", script.read_text(), re.DOTALL)
    assert text is not None
    return sum(bool(line.strip()) for line in text[1].splitlines())


def main(what: str, *names: str) -> None:
    for name in names or SCRIPTS:
        script, server = HERE / SCRIPTS[name][0], SCRIPTS[name][1]
        node = script.suffix == ".mjs"
        venv = CACHE / "venvs" / name / "bin"
        python = sys.executable if name == "ours" else str(venv / "python")
        if name != "ours":
            Environments().prepare(System(name, name, "", name, 0, 0, "", node=node))
        command = ["node" if node else python, str(script)]
        with server() as url:
            if name == "absurd":
                init = [str(venv / "absurdctl"), "init", "-d", url]
                subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
            found = times(command, url) if what == "times" else after_a_kill(command, url)
        counts = {part: lines(script, part) for part in ("flow", "steps")}
        print(json.dumps({"name": name, "lines": counts, what: found}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends servers and workers, too
    main(*(sys.argv[1:] or ["times"]))
