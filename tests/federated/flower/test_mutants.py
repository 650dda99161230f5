"""Mutants of Flower's records: refused with no change or taken, by server and client and by the whole app."""

import os

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from federated import ALGORITHMS, decode, encode
from federated.flower.client_app import app
from federated.flower.records import ACCOUNT, ARRAYS, HEADER, frame_in, load_state, records_of
from federated.testing import Promises, algorithm_factory
from federated.testing.harness import make, run, states_equal
from federated.testing.mutants import EDGES, Mutator, refused, restored, stages
from tests.federated.flower.fake import RUN, FakeGrid, passed
from tests.federated.flower.setting import federation_over, grid_of, run_config

COUNT = int(os.environ.get("MUTANTS", "60"))
FZOOS = {"num_features": 32, "initial_queries": 3, "active_queries": 2, "candidates": 8}
TEXTS = [edge for edge in EDGES if isinstance(edge, str)]
SHAPES = [(), (0,), (2**39, 2**39, 0), (-1,), (5, 1), (1 << 70,)]


def altered(mutator, records, others):
    """Records with a part replaced: the header, an array's data, dtype, shape or kind, or a record."""
    found, how = dict(records), mutator.below(8)
    text = found[HEADER]["header"] if HEADER in found else b""
    arrays = dict(found.get(ARRAYS, {}))
    if how < 3 and text:
        text = (mutator.damaged(text, others) if how == 0 else mutator.header(text, others))[: 1 << 17]
        found[HEADER] = ConfigRecord({"header": text})
    elif how < 6 and arrays:
        name = list(arrays)[mutator.below(len(arrays))]
        parts = {field: getattr(arrays[name], field) for field in ("dtype", "shape", "stype", "data")}
        field = list(parts)[mutator.below(4)]
        parts[field] = {
            "shape": SHAPES[mutator.below(len(SHAPES))],
            "data": mutator.damaged(parts["data"], others),
        }.get(field, TEXTS[mutator.below(len(TEXTS))])
        arrays[name] = Array(**parts)
        found[ARRAYS] = ArrayRecord(arrays)
    elif how == 6:
        key = list(found)[mutator.below(len(found))]
        found[key] = [ConfigRecord({"header": 5}), MetricRecord({"x": 1.0}), ArrayRecord({})][mutator.below(3)]
    else:
        del found[list(found)[mutator.below(len(found))]]
    return found


@pytest.mark.timeout(36_000 if COUNT > 1000 else 300)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_records_are_refused_with_no_change_or_taken(name):
    made = make(algorithm_factory(name, **(FZOOS if name == "fzoos" else {})), Promises(local_steps=2))
    run(made, 2)
    mutator, found = Mutator(list(ALGORITHMS).index(name)), list(stages(made))
    others = [data for stage in found for data in (stage.broadcast, stage.report)]
    taken = 0
    for stage in found:
        client, before = restored(made, stage.client), stage.server.state_dict()
        report, broadcast = records_of(decode(stage.report)), records_of(decode(stage.broadcast))
        for _ in range(COUNT):
            content = RecordDict(altered(mutator, report, others))
            taken += not refused(lambda content, at: at.check(frame_in(content), 1), content, stage.server)
            content = RecordDict(altered(mutator, broadcast, others))
            if not refused(lambda content, to: to.receive(frame_in(content)), content, client):
                client, taken = restored(made, stage.client), taken + 1
            elif made.algorithm.name in ("hiso", "decomfl"):  # a wrong digest leaves them behind, with another model
                client = restored(made, stage.client)
        assert states_equal(stage.server.state_dict(), before)
        assert states_equal(client.state_dict(), stage.client)
    assert taken


def test_the_client_app_answers_every_mutant_and_keeps_its_state(tmp_path):
    config, mutator = run_config("fedzo"), Mutator(1)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    over.run_round()
    node = grid.nodes[11]
    before = load_state(node.state)
    records = records_of(over.server.broadcast(1))
    for _ in range(COUNT // 3):
        content = RecordDict(altered(mutator, records, [encode(over.server.broadcast(1))]))
        FakeGrid()
        message = passed(Message(content, dst_node_id=11, message_type="train.phase"))
        context = Context(RUN, 11, dict(node.config), RecordDict(dict(node.state.items())), dict(config))
        account = app(message, context).content[ACCOUNT]
        assert account["reason"].isprintable() and len(account["reason"]) < 500
        if account["reason"] and "the queries failed" not in account["reason"]:
            assert states_equal(load_state(context.state), before)


def test_a_round_goes_on_without_the_node_whose_replies_are_mutants(tmp_path):
    config, mutator = run_config("fedzo", rounds=COUNT // 6), Mutator(2)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    node = grid.nodes[11]

    def reply(message):
        node.act = None
        try:
            genuine = node.reply(message)
        finally:
            node.act = reply
        records = altered(mutator, dict(genuine.content.items()), [encode(over.server.broadcast(1))])
        if ACCOUNT in records and mutator.below(2):
            given = dict(records[ACCOUNT].items())
            name = [*given, "client"][mutator.below(len(given) + 1)]
            plain = [e for e in EDGES if type(e) in (bool, int, float, str) and (type(e) is not int or abs(e) < 2**62)]
            records[ACCOUNT] = ConfigRecord(given | {name: plain[mutator.below(len(plain))]})
        return Message(RecordDict(records), reply_to=message)

    node.act = reply
    for _ in range(COUNT // 6):
        record = over.run_round()
        assert set(record.accepted) >= {0, 2} and record.skipped is None
    rows = over.ledger.to_rows()
    assert all(len(row["refused"]) <= 2000 and row["refused"].isprintable() for row in rows)
    assert any(row["refused"] for row in rows if row["client"] == 1)
    assert not any(row["refused"] for row in rows if row["client"] != 1)
