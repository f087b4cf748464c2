"""What people see of the locks: pages, lists, histories, deadlocks, stacks and the doctor.

It reads the reports that processes write, and the locks themselves. Nothing that takes a lock imports it; it registers
itself with ``locks.holds.INSPECTOR``, which errors and ``lock.info()`` ask. docs/design/console.md explains it.
"""
