import csv
from dataclasses import asdict

import pytest
import torch

from federated.testing import Fault, Quadratic

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from federated import ALGORITHMS
from federated.core.ledger import Spent
from federated.flower import configuration
from federated.flower.grid_host import NoClientError
from federated.flower.node_ledger import COLUMNS
from federated.flower.records import ACCOUNT
from federated.flower.waiting import Patience
from tests.federated.flower.fake import LOST, SILENT, Killed
from tests.federated.flower.setting import federation_over, grid_of, in_process, node_config, run_config

COUNTS = ("queries", "failures", "gradients", "payload_up", "payload_down")


def run(federation, rounds=3):
    xs = []
    for _ in range(rounds):
        federation.run_round()
        xs.append(federation.server.x.clone())
    return xs


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def phase_of(message):
    """Round and kind of a message to a node."""
    return int(message.metadata.group_id or 0), message.metadata.message_type


def own_ledger(tmp_path, client):
    with (tmp_path / f"run-7-client-{client}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_iterates_and_costs_are_those_of_the_federation_in_process(name, tmp_path):
    config = run_config(name, participation=2)
    over, near = federation_over(grid_of(config, tmp_path), config), in_process(config)
    over.host.connect()
    assert same(run(over), run(near))
    assert repr(list(map(asdict, over.history))) == repr(list(map(asdict, near.history)))
    for ours, theirs in zip(over.ledger.to_rows(), near.ledger.to_rows(), strict=True):
        assert [ours[c] for c in COUNTS] == [theirs[c] for c in COUNTS]
        assert ours["message_up"] > ours["payload_up"] and ours["refused"] == "" and ours["wire_up"] is None
    over.settle(over.host.accounts())
    assert over.ledger.total("queries") == near.ledger.total("queries")
    for client in range(3):
        own = [row for row in own_ledger(tmp_path, client) if row["event"] in ("done", "gradient")]
        for count in ("queries", "failures", "gradients"):
            assert sum(int(row[count]) for row in own) == over.ledger.total(count, client=client)


def killing(monkeypatch, client, after):
    """Kill a client's process at its query number ``after`` from now on, once; where it stands."""
    spent = {"left": after, "killed": False}
    value = Quadratic.__call__

    def call(self, x):
        if self.number == client and spent["left"] is not None:
            spent["left"] -= 1
            if spent["left"] < 0:
                spent["left"], spent["killed"] = None, True
                raise Killed
        return value(self, x)

    monkeypatch.setattr(Quadratic, "__call__", call)
    return spent


@pytest.mark.parametrize("name", ["fedzo", "fzoos", "hiso", "scaffold1"])
def test_a_killed_process_costs_its_report_and_its_queries_are_counted_later(name, tmp_path, monkeypatch):
    config = run_config(name)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    run(over, 1)
    spent = killing(monkeypatch, 1, after=3)
    lost = over.run_round()
    assert spent["killed"] and 1 not in lost.accepted
    assert lost.refused[0][0] == 1 and "Flower's error 8" in lost.refused[0][2]
    counted = over.ledger.total("queries", client=1)
    last = over.run_round()
    assert last.accepted == (0, 1, 2)
    # The batch that was cut short counts as spent: the client's own ledger has it, and so has the server's now.
    rows = own_ledger(tmp_path, 1)
    cut = [i for i, row in enumerate(rows) if row["event"] == "begun" and rows[i + 1]["event"] == "begun"]
    assert len(cut) == 1
    own = sum(int(row["queries"]) for row in rows if row["event"] == "done") + int(rows[cut[0]]["queries"])
    assert own == over.ledger.total("queries", client=1) > counted
    note = next(row["refused"] for row in over.ledger.to_rows() if (row["round"], row["client"]) == (3, 1))
    assert "queries belong to lost reports" in note
    # Its state is that of before the message, as if the broadcast had not reached it.
    near = in_process(config, [Fault("unreachable", 2, 1)])
    assert torch.equal(run(near)[-1], over.server.x)


@pytest.mark.parametrize("name", ["fedavg", "fzoos", "hiso", "scaffold2"])
def test_a_client_that_returns_on_another_node_is_new(name, tmp_path):
    config = run_config(name, rounds=6)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    xs = run(over, 2)
    del grid.nodes[11]
    xs += run(over, 1)
    assert over.history[-1].refused == ((1, over.algorithm.exchanges[0], "the client is not connected"),)
    grid.add(20, node_config(1, tmp_path), config)
    over.host._refresh_nodes()
    over.host._poll()
    xs += run(over, 3)
    assert over.history[-1].accepted == (0, 1, 2) and not over.history[-1].refused
    near = in_process(config, [Fault("crash", 3, 1, after=0), Fault("rejoin", 4, 1)])
    assert same(xs, run(near, 6))
    # HiSo's model was rebuilt: the state or the scalars went down to it again.
    again = grid.kinds["train.catch_up"]
    assert again == (1 if name == "hiso" else 0)
    payloads = [f.ledger.total("payload_down", client=1) for f in (over, near)]
    assert payloads[0] == payloads[1] - near.ledger.total("payload_down", client=1, round=3)


def test_hisos_bounded_log_gives_way_to_the_whole_state(tmp_path):
    config = run_config("hiso", rounds=8)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    node = grid.nodes.pop(11)
    over.host._refresh_nodes()
    run(over, 5)
    grid.nodes[11] = node
    over.host._refresh_nodes()
    over.host._poll()
    run(over, 1)
    assert over.history[-1].accepted == (0, 1, 2)
    # Scalars are 16 bytes a round, the state has x and H: 80.
    assert over.ledger.total("payload_down", client=1, round=6) >= 80


def test_a_lost_reply_and_a_late_one(tmp_path):
    config = run_config("fedzo", timeout=60.0)
    lost = grid_of(config, tmp_path, act=lambda c: lambda m: LOST if c == 2 and phase_of(m)[0] == 1 else None)
    over = federation_over(lost, config)
    over.host.connect()
    record = over.run_round()
    assert record.accepted == (0, 1) and record.refused == ((2, "local", "no reply within 60 s"),)
    assert lost.now >= 60.0
    over.run_round()
    assert over.ledger.total("queries", client=2) == over.ledger.total("queries", client=0)
    near = in_process(config, [Fault("drop", 1, 2)])
    assert torch.equal(run(near, 2)[-1], over.server.x)


def test_a_round_without_clients_waits_and_then_ends_the_run(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    grid.nodes.clear()
    began = grid.now
    with pytest.raises(NoClientError, match=r"none of the clients \[0, 1, 2\] has been connected for 120 s"):
        over.run_round()
    assert grid.now - began >= 120.0


def spoiled(client, how):
    def act(message):
        if phase_of(message)[1] != "train.phase":
            return None
        content = {
            "empty": {},
            "account alone": {"account": ConfigRecord({"reason": ""})},
            "no header": {"arrays": ArrayRecord({}), "header": ConfigRecord({"header": b"?"})},
            "account of lies": {"account": ConfigRecord({"reason": "", "queries": -5, "seconds": float("nan")})},
            "account of text": {"account": ConfigRecord({"queries": "many", "book": "b", "wire-up": 2**62 + 5})},
        }[how]
        return Message(RecordDict(content), reply_to=message)

    return act


@pytest.mark.parametrize("how", ["empty", "account alone", "no header", "account of lies", "account of text"])
def test_a_reply_that_is_no_report_is_refused_and_the_round_goes_on(how, tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path, act=lambda c: spoiled(c, how) if c == 0 else None)
    over = federation_over(grid, config)
    over.host.connect()
    record = over.run_round()
    assert record.accepted == (1, 2) and record.refused[0][0] == 0 and record.refused[0][2]
    assert over.ledger.total("queries", client=0) == 0
    near = in_process(config, [Fault("unreachable", 1, 0)])
    assert torch.equal(run(near, 1)[0], over.server.x)


def test_another_clients_report_is_refused(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    grid.nodes[10], grid.nodes[11] = grid.nodes[11], grid.nodes[10]
    record = over.run_round()
    assert record.accepted == (2,)
    assert [r[2] for r in record.refused] == [
        f"client {a} sent a report in the name of client {b}" for a, b in ((0, 1), (1, 0))
    ]


def test_failures_of_the_objective_are_counted(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path, **{"on-failure": "retry"})
    for client in range(3):
        grid.nodes[10 + client].config["arguments"] += ", failing = 4"
    over = federation_over(grid, config)
    over.host.connect()
    run(over)
    assert over.ledger.total("failures") > 0
    assert over.ledger.total("queries") > in_process(config).run_round().queries * 3
    raising = grid_of(config, tmp_path / "raise", **{"on-failure": "raise"})
    raising.nodes[12].config["arguments"] += ", failing = 4"
    over = federation_over(raising, config)
    over.host.connect()
    record = over.run_round()
    assert record.accepted == (0, 1) and "ArithmeticError: no value here" in record.refused[0][2]
    # The batch was begun and is counted, though it ended in an exception.
    assert over.ledger.total("queries", client=2) == 4


REFUSED = {
    "objective that cannot be imported": (
        {"objective": "nowhere.module:f"},
        {},
        "objective 'nowhere.module:f' cannot be imported: ModuleNotFoundError",
    ),
    "name that the module has not": (
        {"objective": "federated.testing:Quadratik"},
        {},
        "cannot be imported: AttributeError",
    ),
    "no path": ({"objective": "Quadratic"}, {}, "must be an import path"),
    "no objective": ({"objective": ""}, {}, "names no objective"),
    "not callable": ({"objective": "math:pi", "arguments": ""}, {}, "fun must be callable"),
    "other arguments": ({"arguments": "nummer = 1"}, {}, "unexpected keyword argument 'nummer'"),
    "arguments that are no TOML": ({"arguments": "number ="}, {}, "arguments must read like"),
    "another dimension": ({"arguments": "number = 0, dimension = 4"}, {}, "client 0 has dimension 4, but x0 has 5"),
    "unknown name": ({"objectiv": "x"}, {}, "did you mean 'objective'"),
    "no client": ({"client": -1}, {}, "names no client"),
    "client beyond the federation": ({"client": 3}, {}, "client=3, expected at most 2"),
    "client of another type": ({"client": "0"}, {}, "client must be a whole number, got '0': write client=0"),
    "other failure policy": ({"on-failure": "ignore"}, {}, "on_failure must be"),
    "another configuration": ({}, {"seed": 1}, "the server has seed 0, this federation has 1"),
    "another algorithm": ({}, {"algorithm": "fedprox"}, "fedzo"),
    "the client of another node": (
        {"client": 1, "arguments": "number = 1"},
        {},
        "nodes 10 and 11 both claim to be client 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_client_that_cannot_take_part_ends_the_run_before_the_first_query(name, tmp_path, monkeypatch):
    node, other, reason = REFUSED[name]
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    grid.nodes[10].config |= node
    grid.nodes[10].run_config = config | other
    over = federation_over(grid, config)
    asked = []
    monkeypatch.setattr(Quadratic, "__call__", lambda self, x: asked.append(x))
    with pytest.raises(NoClientError, match=reason.replace("(", r"\(")):
        over.host.connect()
    assert not asked and grid.kinds["train.phase"] == 0


@pytest.mark.parametrize(
    ("node", "who"),
    [
        ({"objective": "nowhere:f"}, r"client 1 \(node 11\)"),
        ({"objectiv": "nowhere:f"}, r"client 1 \(node 11\)"),
        ({"client": 7}, r"client 7 \(node 11\)"),
        ({"client": -1}, "node 11"),
        ({"client": "1"}, "node 11"),
    ],
)
def test_who_cannot_take_part_is_named_as_its_node_is_configured(node, who, tmp_path, caplog):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    grid.nodes[11].config |= node
    with pytest.raises(NoClientError, match=f"^{who} cannot take part: [A-Za-z]+Error: ") as refused:
        federation_over(grid, config).host.connect()
    assert "\n" not in str(refused.value)
    said = str(refused.value).partition("cannot take part: ")[2]
    (record,) = [record for record in caplog.records if record.name == "federated.flower.client_app"]
    number = {"client": 1, **node}["client"]
    assert record.getMessage() == f"client {number} could not answer query.hello: {said}"


def test_a_node_that_cannot_load_the_app_ends_the_run(tmp_path):
    config = run_config("fedzo")
    unable = Error(1, "An exception was raised when attempting to load `ClientApp`")
    grid = grid_of(config, tmp_path, act=lambda c: lambda m: unable if c == 1 else None)
    with pytest.raises(NoClientError, match="node 11 cannot take part: Flower's error 1: An exception"):
        federation_over(grid, config).host.connect()
    (tmp_path / "file").write_text("")
    grid = grid_of(config, tmp_path / "file")
    with pytest.raises(NoClientError, match=r"client 0 \(node 10\) cannot take part: FileExistsError"):
        federation_over(grid, config).host.connect()


def test_clients_that_do_not_connect_are_named(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    del grid.nodes[11]
    with pytest.raises(NoClientError, match=r"clients \[1\] of 3 have not connected within 120 s"):
        federation_over(grid, config).host.connect()
    grid = grid_of(config, tmp_path, act=lambda c: lambda m: SILENT if c == 2 else None)
    with pytest.raises(NoClientError, match=r"clients \[2\]"):
        federation_over(grid, config).host.connect()


def test_what_is_waited_for_is_said_every_half_a_minute(tmp_path):
    config = run_config("fedzo", timeout=100.0)
    grid = grid_of(config, tmp_path, act=lambda c: lambda m: SILENT if c and phase_of(m)[0] == 2 else None)
    over, said = federation_over(grid, config), []
    over.host._say = said.append
    over.host.connect()
    over.run_round()
    assert said == []
    over.run_round()
    assert said == [f"waiting for clients 1, 2, {seconds} of 100 s" for seconds in (30, 60, 90)]


def test_what_is_waited_for_to_connect_is_said(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    del grid.nodes[11]
    over, said = federation_over(grid, config), []
    over.host._say = said.append
    with pytest.raises(NoClientError):
        over.host.connect()
    assert said == [f"waiting for client 1 to connect, {seconds} of 120 s" for seconds in (30, 60, 90, 120)]


def test_a_client_that_connects_begins_the_wait_anew(tmp_path):
    """On a starved machine nodes come one after the other, each within the wait."""
    config = run_config("fedzo", wait=60.0)
    grid = grid_of(config, tmp_path)
    late, sleep = {50.0: 11, 100.0: 12}, grid.sleep
    waiting = {number: grid.nodes.pop(number) for number in late.values()}

    def slept(seconds):
        sleep(seconds)
        for when, number in late.items():
            if grid.now >= when and number in waiting:
                grid.nodes[number] = waiting.pop(number)

    grid.sleep = slept
    over = federation_over(grid, config)
    over.host.connect()
    assert grid.now > 100.0 and over.run_round().accepted == (0, 1, 2)


def test_limits_follow_what_phases_took(tmp_path):
    """Replies that take most of the limit raise it, and then a reply beyond the first limit is in time."""
    config = run_config("fedzo", timeout=60.0, rounds=5)
    grid = grid_of(config, tmp_path)
    takes, due, pull = {1: 50.0, 2: 140.0, 3: 1.0, 4: 100.0}, {}, grid.pull_messages

    def pulled(ids):
        ready = []
        for number in list(ids):
            due.setdefault(number, grid.now + takes.get(over.server.round, 0.0))
            ready += [number] if grid.now >= due[number] else []
        return pull(ready)

    over = federation_over(grid, config)
    over.host.connect()
    grid.pull_messages = pulled
    records = [over.run_round() for _ in range(4)]
    assert [bool(record.accepted) for record in records] == [True, True, True, False]
    assert "no reply within 60 s" in records[3].refused[0][2]


def test_limits_have_a_limit():
    patience = Patience(60.0)
    assert patience.limit("a") == 60.0
    patience.learn("a", [30.0, 30.0, 60.0])
    assert (patience.limit("a"), patience.limit("b")) == (90.0, 60.0)
    for _ in range(9):
        patience.learn("a", [patience.limit("a")])
    assert patience.limit("a") == 600.0


def test_a_client_keeps_its_number_until_it_is_gone(tmp_path, caplog):
    """Another node that says it is the client is refused while the first is there, and takes its place then."""
    config = run_config("fedzo", timeout=60.0)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()

    def claimed(message):
        grid.add(20, node_config(1, tmp_path), config)

    grid.nodes[12].act = lambda message: claimed(message) if phase_of(message)[0] == 1 else None
    grid.nodes[11].act = lambda message: SILENT if phase_of(message)[0] == 2 else None
    assert over.run_round().accepted == (0, 1, 2) and 20 not in over.host._nodes.values()
    record = over.run_round()
    assert record.refused == ((1, "local", "no reply within 60 s"),) and over.host._nodes[1] == 11
    assert "nodes 11 and 20 both claim to be client 1: the first one is used" in caplog.text
    noted = [row["refused"] for row in over.ledger.to_rows() if row["client"] == 1]
    assert noted[1].startswith("nodes 11 and 20 both claim to be client 1: the first one is used; no reply")
    grid.nodes[20].act = lambda message: None
    del grid.nodes[11]
    over.host._refresh_nodes()
    over.host._refresh_nodes()
    over.host._poll()
    assert over.run_round().accepted == (0, 1, 2) and over.host._nodes[1] == 20
    assert grid.kinds["query.hello"] == 5


def test_a_clock_that_jumps_costs_what_was_awaited_and_no_more(tmp_path):
    config = run_config("fedzo", timeout=60.0)
    lies = {"reason": "", "seconds": 1e300}

    def jump(message):
        if phase_of(message) == (2, "train.phase"):
            grid.now += 1e9
            return SILENT
        if phase_of(message) == (3, "train.phase"):
            return Message(RecordDict({"account": ConfigRecord(lies)}), reply_to=message)
        return None

    grid = grid_of(config, tmp_path, act=lambda c: jump if c == 1 else None)
    over = federation_over(grid, config)
    over.host.connect()
    records = [over.run_round() for _ in range(4)]
    assert [1 in r.accepted for r in records] == [True, False, False, True]
    assert records[1].refused[0] == (1, "local", "no reply within 60 s")
    rows = {row["round"]: row for row in over.ledger.to_rows() if row["client"] == 1}
    assert "no reply within 60 s" in rows[2]["refused"] and rows[3]["seconds"] == 60.0


def test_errors_of_flower_are_reasons(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path, act=lambda c: lambda m: Error(4, "gone") if c == 1 and phase_of(m)[0] else None)
    over = federation_over(grid, config)
    over.host.connect()
    assert over.run_round().refused == ((1, "local", "Flower's error 4: gone"),)
    grid.push_messages = lambda messages: [None]
    record = over.run_round()
    assert record.skipped == "no valid report" and "did not accept the message" in record.refused[0][2]


def test_bytes_on_the_wire_are_those_of_the_nodes_meter(tmp_path, monkeypatch):
    from federated.flower import wire

    stand = {"at": 1000}

    def reading():
        stand["at"] += 100
        return wire.Reading("meter", stand["at"], 2 * stand["at"])

    monkeypatch.setattr(wire, "reading", reading)
    config = run_config("fedzo", clients=1)
    over = federation_over(grid_of(config, tmp_path), config)
    over.host.connect()
    run(over, 2)
    # 1,100 had passed when the node was greeted; each reply adds 100 up and 200 down.
    assert [row["wire_up"] for row in over.ledger.to_rows()] == [100, 100]
    assert [row["wire_down"] for row in over.ledger.to_rows()] == [200, 200]
    over.settle(over.host.accounts())
    assert over.ledger.total("wire_up") == 300 and over.ledger.total("payload_up") == 2 * 40


def test_an_own_ledger_outlives_a_line_that_was_cut_short(tmp_path):
    from federated.flower.node_ledger import NodeLedger

    ledger = NodeLedger(tmp_path, 1, 0)
    ledger.write(1, "local", "begun", Spent(4))
    ledger.write(1, "local", "done", Spent(5, 2))
    ledger.write(2, "local", "begun", Spent(4))
    with ledger.path.open("a") as file:
        file.write(f"{ledger.book},2,loc")
    again = NodeLedger(tmp_path, 1, 0)
    assert again.book == ledger.book and again.spent() == (9, 2, 0)
    again.write(3, "local", "gradient", Spent(gradients=1))
    again.write(3, "local", "begun", Spent(1))
    assert again.spent() == (10, 2, 1)
    assert tuple(own_header(again.path)) == COLUMNS
    assert NodeLedger(tmp_path, 2, 0).book != ledger.book


def own_header(path):
    return path.read_text().splitlines()[0].split(",")


def test_the_ledgers_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    node = configuration.NodeConfig.of({"client": 0, "objective": "a:b"})
    assert node.ledger_folder() == tmp_path / "ledgers"
    assert configuration.NodeConfig.of({"client": 0, "objective": "a:b", "ledger": "/x"}).ledger_folder().name == "x"


def test_queries_that_no_message_can_take_are_not_booked(tmp_path):
    config = run_config("fedzo")

    def boast(message):
        node = grid.nodes[11]
        node.act = None
        try:
            genuine = node.reply(message)
        finally:
            node.act = boast
        records = dict(genuine.content.items())
        if ACCOUNT in records and phase_of(message)[1] == "train.phase":
            records[ACCOUNT] = ConfigRecord(dict(records[ACCOUNT].items()) | {"queries": 10**15})
        return Message(RecordDict(records), reply_to=message)

    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    grid.nodes[11].act = boast
    over.run_round()
    most = 101 * 2 * 4  # retries, steps, queries of a step
    assert over.ledger.total("queries", client=1) == most == over.algorithm.max_client_queries
    (note,) = (row["refused"] for row in over.ledger.to_rows() if row["client"] == 1)
    assert f"{10**15} queries are claimed, the maximum of {most} is booked" in note
