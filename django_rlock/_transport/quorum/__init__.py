"""RedLock: an alias with NODES, whose locks are held on a majority of independent servers.

* ``calls`` is the algorithm: what each call asks the nodes, and what their votes mean together. ``Quorum`` is the
  topology that runs such calls.
* ``votes`` is one call at work. A ``Session`` has the connections to the nodes, sends calls and hears the replies. A
  ``VotingRound`` sends a call over a session until its result is decided; a ``VoteTally`` has the votes on it. Two
  things are known from earlier calls: which nodes have restarted (``Restarts``), and their clocks (``Proposals``).
* ``threads`` and ``tasks`` are the two bindings. Each has a ``QuorumTransport``, which opens sessions and keeps
  connections between them.
* ``nodes`` is what all threads and tasks of the process know about the nodes: which are down, and what they missed.
"""
