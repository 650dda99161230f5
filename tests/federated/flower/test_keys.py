"""Who is who: a client number belongs to a node's key."""

import re

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from federated.flower import server_app
from federated.flower.configuration import RunConfig
from federated.flower.grid_host import NoClientError
from federated.flower.keys import client_of, read_keys
from tests.federated.flower.setting import federation_over, grid_of, node_config, run_config

KEYS = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(4)]
SSH = [key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode() for key in KEYS]
PEM = [key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo) for key in KEYS]


def listed(tmp_path, *lines):
    path = tmp_path / "clients.keys"
    path.write_text("\n".join(lines))
    return path


def whole(tmp_path):
    return listed(tmp_path, "# the clinics", f"0 {SSH[0]}", "", f"  2 {SSH[2]} ann@clinic", f"1 {SSH[1]}")


def test_a_list_gives_each_key_its_client(tmp_path):
    keys = read_keys(whole(tmp_path), 3)
    assert [client_of(keys, pem) for pem in PEM] == [0, 1, 2, None]
    assert client_of(keys, b"") is client_of(keys, b"-----BEGIN PUBLIC KEY-----") is None


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"0 {SSH[0]}", f"1 {SSH[1]}"], "has no keys of clients [2]"),
        ([f"0 {SSH[0]}", f"1 {SSH[0]}", f"2 {SSH[2]}"], "line 2 of"),
        ([f"0 {SSH[0]}", f"0 {SSH[1]}", f"2 {SSH[2]}"], "a second key for client 0"),
        ([f"3 {SSH[0]}"], "'3', expected a client from 0 to 2"),
        ([SSH[0]], "'ecdsa-sha2-nistp384', expected a client"),
        (["0 ecdsa-sha2-nistp384 AAAA"], "line 1 of"),
        (["0"], "has no valid public key"),
        ([f"\u0661 {SSH[0]}"], "expected a client"),
    ],
)
def test_a_list_that_is_wrong_says_where(lines, reason, tmp_path):
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_keys(listed(tmp_path, *lines), 3)
    config = run_config("fedzo", keys=str(tmp_path / "clients.keys"))
    grid = grid_of(config, tmp_path)
    with pytest.raises(ValueError, match=re.escape(reason)):
        server_app.run(grid, RunConfig.of(config))
    assert not grid.kinds


def keyed(tmp_path, keys=(0, 1, 2)):
    """A federation whose nodes have these keys, in order, and the list has keys 0, 1 and 2."""
    config = run_config("fedzo")
    grid = grid_of(config, tmp_path)
    for number, key in zip((10, 11, 12), keys, strict=True):
        grid.nodes[number].key = PEM[key]
    return grid, federation_over(grid, config, keys=read_keys(whole(tmp_path), 3))


def test_a_node_is_the_client_of_its_key_and_a_stranger_is_none(tmp_path, caplog):
    grid, over = keyed(tmp_path)
    grid.add(5, node_config(1, tmp_path), run_config("fedzo")).key = PEM[3]
    grid.add(6, node_config(2, tmp_path), run_config("fedzo"))
    over.host.connect()
    assert over.run_round().accepted == (0, 1, 2) and over.host._nodes == {0: 10, 1: 11, 2: 12}
    for node in (5, 6):
        assert caplog.text.count(f"node {node} cannot take part: its key is not in the list") == 1
    assert grid.kinds["query.hello"] == 3


def test_a_claim_to_anothers_number_is_refused_ledgered_and_the_round_goes_on(tmp_path, caplog):
    """Client 2's node says that it is client 1, while client 1 is away and when it is back."""
    grid, over = keyed(tmp_path)
    over.host.connect()
    over.run_round()
    away = grid.nodes.pop(11)
    grid.nodes[12].config |= {"client": 1, "arguments": "number = 1, dimension = 5"}
    grid.nodes[22] = grid.nodes.pop(12)
    over.host._refresh_nodes()
    over.host._poll()
    record = over.run_round()
    assert record.accepted == (0,) and "claims to be client 1, its key belongs to client 2" in caplog.text
    assert over.host._nodes == {0: 10}
    grid.nodes[11] = away
    over.host._refresh_nodes()
    over.host._poll()
    assert over.run_round().accepted == (0, 1)
    rows = {(row["round"], row["client"]): row["refused"] for row in over.ledger.to_rows()}
    assert rows[3, 1] == "node 22 claims to be client 1, its key belongs to client 2" and rows[3, 0] == ""


def test_who_cannot_take_part_is_the_client_of_its_key(tmp_path):
    grid, over = keyed(tmp_path)
    grid.nodes[11].config |= {"client": 0, "objective": "nowhere:f"}
    with pytest.raises(
        NoClientError, match=r"^client 1 \(node 11\) cannot take part: ValueError: objective 'nowhere:f'"
    ):
        over.host.connect()


def test_a_list_without_a_connected_client_ends_the_wait(tmp_path):
    _, over = keyed(tmp_path, keys=(0, 1, 3))
    with pytest.raises(NoClientError, match=r"clients \[2\] of 3 have not connected"):
        over.host.connect()


def test_with_tls_a_list_is_needed(tmp_path, monkeypatch):
    from flwr.app import Context, RecordDict

    config = run_config("fedzo", rounds=1)
    grid = grid_of(config, tmp_path)
    context = Context(7, 1, {}, RecordDict(), config)
    monkeypatch.setattr(server_app, "_log_to_run", lambda: None)
    grid._insecure = False
    with pytest.raises(ValueError, match='pass keys="FILE"'):
        server_app.main(grid, context)
    assert not grid.kinds
    grid._insecure = True
    server_app.main(grid, context)
    assert grid.kinds["train.phase"] == 3
