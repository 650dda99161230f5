"""A ``Grid`` in memory, whose nodes run our ``ClientApp`` on messages that passed through Flower's own encoding."""

from collections import Counter
from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from federated.flower import grid_host
from federated.flower.client_app import app

RUN = 7
SILENT, LOST = "silent", "lost"


class Killed(BaseException):
    """The client's process is killed."""


@dataclass
class Node:
    """A SuperNode.

    ``act`` is told of each message before the client app sees it, and may return a reply or error of its own,
    ``SILENT`` for no reply, or ``LOST`` for a reply that the client makes and that never arrives.
    """

    config: dict
    run_config: dict
    state: RecordDict = field(default_factory=RecordDict)
    act: object = None
    key: bytes = b""

    def reply(self, message):
        act = self.act(message) if self.act else None
        if isinstance(act, Message | Error) or act == SILENT:
            return act
        state = RecordDict(dict(self.state.items()))
        context = Context(RUN, message.metadata.dst_node_id, dict(self.config), state, dict(self.run_config))
        try:
            reply = app(message, context)
        except Killed:
            return Error(8, "the client app crashed")
        except Exception as error:
            return Error(2, repr(error))
        self.state = context.state
        return SILENT if act == LOST else reply


def passed(message):
    """The message as it arrives on the other side."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {i: o.deflate() for i, o in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, objects)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


class FakeGrid(Grid):
    """Nodes by number, and the time of grid hosts, which stands still but for ``sleep``."""

    def __init__(self):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.nodes, self.replies, self.now, self.kinds = {}, {}, 0.0, Counter()
        grid_host.time = self

    def add(self, number, config, run_config, act=None):
        self.nodes[number] = Node(config, run_config, act=act)
        return self.nodes[number]

    def sleep(self, seconds):
        self.now += seconds

    def monotonic(self):
        return self.now

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [NodeInfo(node_id=number, public_key=node.key) for number, node in self.nodes.items()]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            arrived = passed(message)
            ids.append(arrived.metadata.message_id)
            self.kinds[message.metadata.message_type] += 1
            node = self.nodes.get(message.metadata.dst_node_id)
            reply = Error(5, "node unavailable") if node is None else node.reply(arrived)
            if isinstance(reply, Error):
                reply = Message(reply, reply_to=arrived)
            if isinstance(reply, Message):
                self.replies[ids[-1]] = passed(reply)
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
