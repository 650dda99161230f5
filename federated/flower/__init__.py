"""Federations on several machines with Flower, with the algorithms, round loop and iterates of ``simulate``.

One Flower app (``federated/flower/app``) runs every algorithm in ``federated.registry``, chosen by its run config. The
app contains none of your code: a node imports the objective named in its own configuration. ``python -m
federated.flower`` starts servers, nodes and runs, ``configuration`` documents the options, and ``server_app`` and
``client_app`` are the server's and the clients' parts. Requires the extra ``flower``.
"""
