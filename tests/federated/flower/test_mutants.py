"""Mutants of Flower's records: refused with no change or taken, by server and client and by the whole app."""

import json
import os

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import strategies as st

from federated import ALGORITHMS, decode, encode
from federated.flower.client_app import app
from federated.flower.records import ACCOUNT, ARRAYS, HEADER, frame_in, load_state, records_of
from federated.testing import Promises, algorithm_factory
from federated.testing.harness import make, run, states_equal
from tests.federated.flower.fake import RUN, FakeGrid, passed
from tests.federated.flower.setting import federation_over, grid_of, run_config
from tests.federated.mutants import EDGES, fuzz, headers, refused, restored, spliced, stages

COUNT = int(os.environ.get("MUTANTS", "60"))
FZOOS = {"num_features": 32, "initial_queries": 3, "active_queries": 2, "candidates": 8}
TEXTS = [edge for edge in EDGES if isinstance(edge, str)]
PLAIN = [edge for edge in EDGES if type(edge) in (bool, float, str) or (type(edge) is int and abs(edge) < 2**62)]
SHAPES = [(), (0,), (2**39, 2**39, 0), (-1,), (5, 1), (1 << 70,)]
STRANGE = [ConfigRecord({"header": 5}), MetricRecord({"x": 1.0}), ArrayRecord({})]


def altered(records, others):
    """Records with a part replaced: the header, an array's data, dtype, shape or kind, or a record."""
    found, arrays, names = dict(records), dict(records.get(ARRAYS, {})), st.sampled_from(sorted(records))
    kinds = [
        names.map(lambda name: {key: record for key, record in found.items() if key != name}),
        st.builds(lambda name, record: found | {name: record}, names, st.sampled_from(STRANGE)),
    ]
    if text := found[HEADER]["header"] if HEADER in found else b"":
        texts = headers(json.loads(text), others) | spliced(text, others)
        kinds.append(texts.map(lambda text: found | {HEADER: ConfigRecord({"header": text[: 1 << 17]})}))
    for name, array in arrays.items():
        near = array_like(array, others)
        kinds.append(near.map(lambda new, name=name: found | {ARRAYS: ArrayRecord(arrays | {name: new})}))
    return st.one_of(kinds)


def array_like(array, others):
    """Arrays that differ from one in a field."""
    parts = {field: getattr(array, field) for field in ("dtype", "shape", "stype", "data")}
    texts = st.sampled_from(TEXTS)
    values = {"shape": st.sampled_from(SHAPES), "data": spliced(parts["data"], others), "dtype": texts, "stype": texts}
    return st.one_of([value.map(lambda v, field=field: Array(**parts | {field: v})) for field, value in values.items()])


@pytest.mark.timeout(36_000 if COUNT > 1000 else 300)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_records_are_refused_with_no_change_or_taken(name):
    made = make(algorithm_factory(name, **(FZOOS if name == "fzoos" else {})), Promises(local_steps=2))
    run(made, 2)
    found, taken = list(stages(made)), 0
    others = [data for stage in found for data in (stage.broadcast, stage.report)]
    for stage in found:
        before = stage.server.state_dict()

        def to_server(records, stage=stage, before=before):
            given = refused(lambda content: stage.server.check(frame_in(content), 1), RecordDict(records))
            assert states_equal(stage.server.state_dict(), before)
            return not given

        def to_client(records, stage=stage):
            client = restored(made, stage.client)
            given = refused(lambda content: client.receive(frame_in(content)), RecordDict(records))
            # A wrong digest leaves a scalar-only client behind, with another model.
            assert not given or name in ("hiso", "decomfl") or states_equal(client.state_dict(), stage.client)
            return not given

        taken += fuzz(altered(records_of(decode(stage.report)), others), to_server, COUNT)["taken"]
        taken += fuzz(altered(records_of(decode(stage.broadcast)), others), to_client, COUNT)["taken"]
    assert taken


def test_the_client_app_answers_every_mutant_and_keeps_its_state(tmp_path):
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    over.run_round()
    node = grid.nodes[11]
    before = load_state(node.state)

    def send(records):
        FakeGrid()
        message = passed(Message(RecordDict(records), dst_node_id=11, message_type="train.phase"))
        context = Context(RUN, 11, dict(node.config), RecordDict(dict(node.state.items())), dict(config))
        reason = app(message, context).content[ACCOUNT]["reason"]
        assert reason.isprintable() and len(reason) < 500
        if reason and "the queries failed" not in reason:
            assert states_equal(load_state(context.state), before)

    broadcast = over.server.broadcast(1)
    fuzz(altered(records_of(broadcast), [encode(broadcast)]), send, COUNT // 3)


def test_a_round_goes_on_without_the_node_whose_replies_are_mutants(tmp_path):
    config = run_config("fedzo", rounds=COUNT // 6)
    grid = grid_of(config, tmp_path)
    over = federation_over(grid, config)
    over.host.connect()
    node = grid.nodes[11]

    def a_round(data):
        def reply(message):
            node.act = None
            try:
                genuine = node.reply(message)
            finally:
                node.act = reply
            records = data.draw(altered(dict(genuine.content.items()), [encode(over.server.broadcast(1))]))
            if ACCOUNT in records and data.draw(st.booleans()):
                given = dict(records[ACCOUNT].items())
                entry = {data.draw(st.sampled_from([*given, "client"])): data.draw(st.sampled_from(PLAIN))}
                records = records | {ACCOUNT: ConfigRecord(given | entry)}
            return Message(RecordDict(records), reply_to=message)

        node.act = reply
        record = over.run_round()
        assert set(record.accepted) >= {0, 2} and record.skipped is None

    fuzz(st.data(), a_round, COUNT // 6)
    rows = over.ledger.to_rows()
    assert all(len(row["refused"]) <= 2000 and row["refused"].isprintable() for row in rows)
    assert any(row["refused"] for row in rows if row["client"] == 1)
    assert not any(row["refused"] for row in rows if row["client"] != 1)
