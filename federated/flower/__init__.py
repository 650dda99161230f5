"""Federations over several machines, on Flower: the algorithms, the round loop and the iterates of ``simulate``.

One Flower app (``federated/flower/app``) runs every algorithm of ``federated.registry``, chosen by its run config;
``configuration`` lists the names. It holds no code: a node evaluates the objective whose import path its own
configuration gives.

=================  =================================================================================
module             subject
=================  =================================================================================
``configuration``  what run config and node config hold, and what is refused before the first query
``records``        our messages and clients' states as Flower's records
``grid_host``      clients beyond a ``Grid``: what ``federated.Federation`` drives
``accounts``       what clients say they have spent, each number booked once
``server_app``     the ``ServerApp``
``client_app``     the ``ClientApp``
``node_ledger``    a client's own count of its queries, which outlives its process
``wire``           bytes between a SuperNode and the SuperLink
``example``        objectives to try it with
``__main__``       ``python -m federated.flower superlink | supernode | register | run``: Flower's, with telemetry,
                   update check and run-time installation off, plain HTTP on loopback only
=================  =================================================================================

Needs the extra ``flower``.
"""
