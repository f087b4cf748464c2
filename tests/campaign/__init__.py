"""Celery workers under a nemesis, and a checker of every task's fate: ``python -m tests.campaign``.

app.py         the tasks, each of which writes down when it was inside its lock; and one without a lock
settings.py    Django's settings of the workers
servers.py     the broker and the server of the locks, with proxies before them
staff.py       the workers, to be stopped, killed and replaced
publisher.py   sends tasks over few keys, from one seed
deeds.py       what the nemesis does; nemesis, records, the checker of overlaps and the rig are those of tests.soak
fates.py       what became of every task, and what must not have
run.py         all of it
"""
