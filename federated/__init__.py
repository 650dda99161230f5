"""Federated zeroth-order optimization: clients keep their functions and exchange messages with a server."""

from importlib.metadata import version as _version

from federated.core.algorithm import Algorithm, FederatedOptions, NoReportError, RoundSkipped, client_seed
from federated.core.client import Client
from federated.core.codec import decode, encode
from federated.core.ledger import Ledger
from federated.core.messages import BehindError, Broadcast, Message, MessageError, MessageSpec, Report, TensorSpec
from federated.core.server import Arrival, Outcome, Server
from federated.engine.federation import Federation, RoundRecord
from federated.engine.host import Host
from federated.engine.result import FederatedResult
from federated.registry import ALGORITHMS, algorithm_class
from federated.simulate import make_federation, simulate

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Arrival",
    "BehindError",
    "Broadcast",
    "Client",
    "FederatedOptions",
    "FederatedResult",
    "Federation",
    "Host",
    "Ledger",
    "Message",
    "MessageError",
    "MessageSpec",
    "NoReportError",
    "Outcome",
    "Report",
    "RoundRecord",
    "RoundSkipped",
    "Server",
    "TensorSpec",
    "algorithm_class",
    "client_seed",
    "decode",
    "encode",
    "make_federation",
    "simulate",
]

__version__ = _version("gradient-surrogates")
