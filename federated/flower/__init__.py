"""Federations over several machines, on Flower, with the algorithms, round loop and iterates of ``simulate``.

One Flower app (``federated/flower/app``) runs every algorithm of ``federated.registry``; its run config chooses one. It
holds no code: a node evaluates the objective whose import path its own configuration gives. ``python -m
federated.flower`` starts the machines and the runs, ``configuration`` lists what can be configured, and
``server_app`` and ``client_app`` are the two parties. Needs the extra ``flower``.
"""
