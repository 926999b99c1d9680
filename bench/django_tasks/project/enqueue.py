"""Enqueues tasks and prints how many per second: `enqueue note 20`, `enqueue nothing 2000`."""

import os
import sys
import time


def main(name: str, count: int) -> None:
    from bench.django_tasks.project.work import tasks

    task = getattr(tasks, name)
    task.enqueue(-1)  # connects
    began = time.perf_counter()
    for number in range(count):
        task.enqueue(number)
    print(round(count / (time.perf_counter() - began)))


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.django_tasks.project.settings"
    if os.environ["TASKS_SYSTEM"] == "celery":
        from bench.django_tasks.project import celery_app  # noqa: F401 - becomes the current app
    import django

    django.setup()
    main(sys.argv[1], int(sys.argv[2]))
