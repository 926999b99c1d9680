"""Django's command line, of the project that is measured."""

import os
import sys

if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.django_tasks.project.settings"
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
