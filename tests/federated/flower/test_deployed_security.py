"""TLS and node authentication, between a SuperLink and two SuperNodes on loopback: ``make test-flower``."""

import datetime
import ipaddress
import signal
import subprocess
import time

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.federated.flower.deployment import ROOT, Deployment, wait_for
from tests.federated.flower.setting import OBJECTIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

RUN = {"algorithm": "fedzo", "rounds": 1, "local-steps": 1, "x0": "0.5", "dimension": 5, "options": "directions = 2"}


def certificates(folder):
    """An authority and a certificate of 127.0.0.1 that it signed."""
    now = datetime.datetime.now(datetime.UTC)

    def made(subject, issuer, key, signer, *extensions):
        name = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (subject, issuer)]
        builder = x509.CertificateBuilder(name[1], name[0], key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256())

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = made(
        "authority", "authority", authority, authority, (x509.BasicConstraints(True, None), True), (identifier, False)
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    leaf = made("127.0.0.1", "authority", server, authority, (names, False), (issued_by, False))
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    private = server.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    (folder / "server.key").write_bytes(private)


def node_key(folder, name):
    """A key pair in the files that ``ssh-keygen -t ecdsa -b 384`` makes."""
    key, ssh = ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / name).write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


def test_nodes_join_by_certificate_and_key_alone(tmp_path):
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        certificates(tmp_path / folder)
    own, other = tmp_path / "own", tmp_path / "other"
    keys = {name: node_key(own, name) for name in ("key-0", "key-1", "stranger")}
    trust = ("--root-certificates", own / "ca.pem")
    with Deployment(tmp_path / "deployment") as deployment:
        secured = ("--ssl-ca-certfile", own / "ca.pem", "--ssl-certfile", own / "server.pem")
        deployment.superlink(*secured, "--ssl-keyfile", own / "server.key", "--enable-supernode-auth")
        for name in ("key-0", "key-1"):
            given = ("register", f"{keys[name]}.pub", "--superlink", deployment.address, *trust)
            subprocess.run(deployment.command(*given), cwd=ROOT, env=deployment.environment, check=True)

        # A line of the list is a client's number and its key's .pub.
        lines = [f"{client} {(own / f'key-{client}.pub').read_text()}" for client in (0, 1)]
        (own / "clients.keys").write_text("\n".join(lines))
        listed = RUN | {"keys": str(own / "clients.keys")}

        def node(name, client, *arguments):
            config = {"client": client, "objective": OBJECTIVE, "arguments": f"number = {client}, dimension = 5"}
            return deployment.supernode(name, *arguments, **config)

        def key(name):
            return ("--auth-supernode-private-key", keys[name])

        strangers = {
            "no-key": trust,
            "unregistered-key": (*trust, *key("stranger")),
            "other-authority": ("--root-certificates", other / "ca.pem", *key("key-1")),
            "plain-http": ("--insecure",),
        }
        for name, arguments in strangers.items():
            node(name, 1, "--max-retries", 1, *arguments)
        node("node-0", 0, *trust, *key("key-0"))
        node("node-1", 1, *trust, *key("key-1"))
        deployment.wait_for_node("node-0")
        deployment.wait_for_node("node-1")
        deployment.run("no-list", *trust, **RUN)
        process = deployment.processes["no-list"]
        wait_for(lambda: process.poll() is not None, "the run without a list to end")
        assert 'pass keys="FILE"' in deployment.log("no-list") and not (deployment.folder / "no-list").exists()
        deployment.run("first", *trust, **listed)
        _, history, _ = deployment.results("first")
        assert history[-1]["accepted"] == "(0, 1)"
        for name in strangers:
            wait_for(lambda name=name: deployment.processes[name].poll() is not None, f"{name} to end")
            assert deployment.processes[name].returncode != 0 and "SuperNode ID" not in deployment.log(name)

        # A key whose node was killed is refused for about a minute: what supervises the node starts it again.
        deployment.end("node-1", signal.SIGKILL)

        def connected(name):
            process = node(name, 1, *trust, *key("key-1"))
            wait_for(lambda: process.poll() is not None or "SuperNode ID" in deployment.log(name), "an answer")
            return "SuperNode ID" in deployment.log(name)

        attempts = 1
        while not connected(f"again-{attempts}"):
            assert deployment.processes[f"again-{attempts}"].returncode != 0
            attempts += 1
            time.sleep(5.0)
        assert attempts > 1
        deployment.run("second", *trust, **listed)
        _, history, _ = deployment.results("second")
        assert history[-1]["accepted"] == "(0, 1)"

        # Keys that are given the other way round are other clients': no node is taken, and the log says why.
        swapped = "\n".join(f"{client} {line.partition(' ')[2]}" for client, line in zip((1, 0), lines, strict=True))
        (own / "swapped.keys").write_text(swapped)
        deployment.run("swapped", *trust, **RUN | {"keys": str(own / "swapped.keys"), "wait": 60.0})
        process = deployment.processes["swapped"]
        wait_for(lambda: process.poll() is not None, "the run with a wrong list to end")
        assert "claims to be client 0, its key belongs to client 1" in deployment.log("swapped")
        assert "clients [0, 1] of 2 have not connected" in deployment.log("swapped")


def test_a_superlink_without_certificates_does_not_start(tmp_path):
    with Deployment(tmp_path) as deployment:
        process = deployment.start("superlink", "superlink", "--port", deployment.port)
        wait_for(lambda: process.poll() is not None, "the SuperLink to end")
        assert process.returncode != 0
