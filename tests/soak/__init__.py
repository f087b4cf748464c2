"""All kinds of locks under a nemesis, and a checker of who was inside when: ``python -m tests.soak``.

servers.py    one server, a pair with a sentinel, five nodes, and proxies before them
workers.py    what runs in each worker process: threads and tasks that take and give back
grips.py      each kind of lock as a worker uses it, and what it promises
crew.py       the worker processes, to be stopped, killed and replaced
deeds.py      what the nemesis does
run.py        one soak
rig.py        what a soak and a campaign share: workers, the report, the command
nemesis.py    when it does what, from one seed
records.py    who held what until when, and what was done: one file for each process
checker.py    who was inside together that must not be, and what explains it
leaks.py      what is left when all is quiet
control.py    the same without locks, which the checker must catch
"""
