"""Django's commands for the example project: ``python example_project/manage.py <command>``."""

import os
import sys
from pathlib import Path


def main() -> None:
    # Python puts this file's folder first, where our celery.py would hide Celery. The project is one level above.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
