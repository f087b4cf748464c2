"""A site under a theme of the admin, in a separate process, because a theme replaces the admin of its process.

Prints its address, and ends with its input.
"""

import os
import sys

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.browser.theme_settings"


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.management import call_command
    from django.test.testcases import LiveServerThread

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("alice", password="password")
    server = LiveServerThread("127.0.0.1", StaticFilesHandler)
    server.daemon = True
    server.start()
    server.is_ready.wait()
    sys.stdout.write(f"http://127.0.0.1:{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
