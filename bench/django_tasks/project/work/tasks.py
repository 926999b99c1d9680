"""What is measured: a task that notes its number, and one that does nothing."""

import os
import time
from pathlib import Path

if os.environ["TASKS_SYSTEM"] == "rq":
    from django_tasks import task
else:
    from django.tasks import task  # type: ignore[no-redef]  # the same interface


@task
def note(number: int) -> int:
    time.sleep(0.2 + 0.05 * number)  # so that some run while others are done
    with Path(os.environ["TASKS_RECORD"]).open("a") as file:
        file.write(f"{number}\n")
    return number


@task
def nothing(number: int) -> int:
    return number
