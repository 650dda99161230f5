import json
import os
import signal
import socket
import subprocess
import sys
import threading
from importlib import metadata
from subprocess import CompletedProcess

import pytest

pytest.importorskip("flwr")

import httpx

from federated.flower import __main__ as commands
from federated.flower import wire

RUN = "dimension=3 rounds=3 clients=2"
NODE = 'client=0 objective="federated.flower.example:quadratic"'


@pytest.fixture
def flower(monkeypatch):
    """What would be started: program, arguments and environment."""
    started = []

    class Program:
        name = "program"

        def load(self):
            import sys

            return lambda: started.append((list(sys.argv), dict(os.environ)))

    def completed(program, env, stdout, text, check):
        config = (commands.Path(env["FLWR_HOME"]) / "config.toml").read_text()
        started.append((program, env, config))
        return CompletedProcess(program, 3, "")

    monkeypatch.setattr(commands, "entry_points", lambda group, name: [Program()])
    monkeypatch.setattr(commands.subprocess, "run", completed)
    monkeypatch.setattr(commands.sys, "argv", ["it"])
    monkeypatch.setattr(commands, "_wait_for", lambda host, port, patience: None)
    monkeypatch.setattr(wire, "count_requests", lambda meter, port: started.append(port))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return started


@pytest.mark.parametrize(
    ("arguments", "host"),
    [
        (["superlink", "--insecure", "--host", "0.0.0.0"], "0.0.0.0"),
        (["superlink", "--insecure", "--host=::"], "::"),
        (["superlink", "--insecure", "--host", ""], ""),
        (["supernode", "--insecure", "--superlink", "10.0.0.3:8000"], "10.0.0.3"),
        (["supernode", "--insecure", "--superlink=flower.example:8000"], "flower.example"),
        (["run", "--insecure", "--superlink", "flower.example:8000"], "flower.example"),
        (["register", "key.pub", "--insecure", "--superlink", "192.168.1.4:8000"], "192.168.1.4"),
        (["stop", "12", "--insecure", "--superlink", "192.168.1.4:8000"], "192.168.1.4"),
        (["status", "--insecure", "--superlink", "192.168.1.4:8000"], "192.168.1.4"),
    ],
)
def test_plain_http_is_refused_beyond_this_machine(arguments, host, flower, capsys):
    with pytest.raises(SystemExit):
        commands.main(arguments)
    assert f"not at '{host}'" in capsys.readouterr().err and not flower


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.9.9.9"])
def test_plain_http_is_accepted_on_this_machine_when_asked_for(host):
    commands.check_insecure(True, host)
    commands.check_insecure(False, "flower.example")


def test_flower_starts_with_telemetry_updates_and_installation_off(flower, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.environ["FLWR_TELEMETRY_ENABLED"] = "1"
    assert commands.main(["superlink", "--insecure", "--port", "8001"]) == 0
    arguments, environment = flower.pop()
    assert arguments == ["flower-superlink", "--insecure", "--port", "8001"]
    assert {name: environment[name] for name in commands.OFF} == commands.OFF
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
    assert environment["PATH"].split(os.pathsep)[0] == str(commands.Path(commands.sys.executable).parent)
    given = ["--superlink", "[2001:db8::1]:9000", "--node-config", NODE]
    assert commands.main(["supernode", *given]) == 0
    port, (arguments, environment) = flower
    assert port == 9000 and arguments == ["flower-supernode", *given]
    assert wire.VARIABLE in environment and {name: environment[name] for name in commands.OFF} == commands.OFF


def test_runs_name_their_superlink(flower, tmp_path):
    assert commands.main(["run", "--insecure", "--run-config", RUN, "--federation", "@a/b", "-c", "seed=1"]) == 3
    program, environment, config = flower.pop()
    configs = ["--run-config", RUN, "--run-config", "seed=1"]
    assert program[1:] == ["run", str(commands.APP), "given", *configs, "--federation", "@a/b"]
    assert config == '[superlink.given]\naddress = "127.0.0.1:8000"\ninsecure = true\n'
    assert {name: environment[name] for name in commands.OFF} == commands.OFF
    ca = tmp_path / "ca.pem"
    commands.main(["register", "k.pub", "--superlink", "flower.example:443", "--root-certificates", str(ca)])
    program, _, config = flower.pop()
    assert program[1:] == ["supernode", "register", "k.pub", "given"]
    assert config == f'[superlink.given]\naddress = "flower.example:443"\nroot-certificates = "{ca}"\n'
    commands.main(["run", "--superlink", "flower.example:443", "--run-config", RUN])
    assert "insecure" not in flower.pop()[2]
    assert commands.main(["stop", "12", "--insecure", "--format", "json"]) == 3
    assert flower.pop()[0][1:] == ["stop", "12", "given", "--format", "json"]
    assert commands.main(["status", "--insecure", "--format", "json"]) == 3
    assert flower.pop()[0][1:] == ["list", "given", "--format", "json"]


@pytest.mark.parametrize(("config", "said"), [("rounds=3", ["clients=2 is assumed: "]), ("clients=3", [])])
def test_a_number_of_clients_that_is_assumed_is_said(config, said, flower, capsys):
    commands.main(["run", "--insecure", "-c", f"dimension=3 {config}"])
    assert [line[: len("clients=2 is assumed: ")] for line in capsys.readouterr().err.splitlines()] == said


def test_the_version_is_the_distributions(capsys):
    with pytest.raises(SystemExit, match="0"):
        commands.main(["--version"])
    assert capsys.readouterr().out == f"gradient-surrogates {metadata.version('gradient-surrogates')}\n"


@pytest.mark.parametrize("command", ["superlink", "supernode", "register", "run", "stop", "status", "app"])
@pytest.mark.parametrize("help_option", ["--help", "-h"])
def test_help_is_our_own_and_needs_no_superlink(command, help_option, flower, capsys):
    with pytest.raises(SystemExit, match="0"):
        commands.main([command, help_option])
    said = capsys.readouterr().out
    assert f"example:\n  {commands.PROGRAM} {command}" in said and not flower
    assert command == "app" or "--insecure" in said
    assert command == "app" or "Other arguments are Flower's: fl" in said
    if command == "run":
        assert all(f"\n  {name}=" in said for name in commands.keys(commands.RunConfig))
    if command == "supernode":
        assert all(f"\n  {name}=" in said for name in commands.keys(commands.NodeConfig))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "--run-config", "dimension=3 local_steps=3"], "'local_steps' is unknown; did you mean 'local-steps'?"),
        (["run", "-c", "dimension=3", "-c", 'rounds="3"'], "rounds must be a whole number, got '3': write rounds=3"),
        (["run"], "add the dimension"),
        (["supernode", "--node-config", "client=0"], "names no objective"),
        (["supernode", "--node-config", f"{NODE} argument=3"], "did you mean 'arguments'?"),
        (["supernode"], "names no client"),
    ],
)
def test_a_configuration_is_refused_before_flower_has_it(arguments, reason, flower, capsys):
    with pytest.raises(SystemExit, match="2"):
        commands.main([arguments[0], "--insecure", *arguments[1:]])
    assert reason in capsys.readouterr().err and not flower


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Successfully started run 123\nINFO\n", "stop 123 --superlink 127.0.0.1:8001 --insecure"),
        ('{"success": true, "run-id": "45"}', "stop 45 --superlink 127.0.0.1:8001 --insecure"),
        ("", "status --superlink 127.0.0.1:8001 --insecure"),
    ],
)
def test_who_interrupts_a_run_is_told_how_to_end_it(output, said, sent, flower, monkeypatch, capsys):
    def program(program, env, stdout, text, check):
        if program[1] == "log" or not output:
            os.kill(os.getpid(), sent)
        return CompletedProcess(program, 0, output if program[1] == "run" else "")

    monkeypatch.setattr(commands.subprocess, "run", program)
    handler = signal.getsignal(signal.SIGTERM)
    assert commands.main(["run", "--insecure", "--superlink", "127.0.0.1:8001", "--run-config", RUN]) == 128 + sent
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"python -m federated.flower {said}") and signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize("sent", [0, signal.SIGINT])
@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        ("finished:failed", 1, ["The run failed: x0 cannot be imported"]),
        ("finished:completed", 0, []),
        ("finished:stopped", 0, []),
    ],
)
def test_the_status_is_that_of_the_run_at_the_superlink(state, status, said, sent, flower, monkeypatch, capsys):
    listed = {"success": True, "runs": [{"status": state, "status-details": "x0 cannot be imported"}]}

    def program(program, env, stdout, text, check):
        if program[1] == "log" and sent:
            raise KeyboardInterrupt
        if program[1] == "list":
            assert program[1:] == ["list", "given", "--run-id", "123", "--format", "json"]
            return CompletedProcess(program, 0, json.dumps(listed))
        return CompletedProcess(program, 0, "Successfully started run 123\n")

    monkeypatch.setattr(commands.subprocess, "run", program)
    assert commands.main(["run", "--insecure", "--run-config", RUN]) == (130 if sent else status)
    assert capsys.readouterr().err.splitlines() == said


def test_a_run_that_flower_refuses_ends_with_its_status_and_has_no_log(flower, capsys):
    assert commands.main(["run", "--insecure", "--run-config", RUN]) == 3
    assert len(flower) == 1 and not capsys.readouterr().err


def test_a_signal_ends_the_program_that_a_command_waits_for(tmp_path):
    """Flower's program is another process: SIGTERM to the command alone ends it too."""
    program = tmp_path / "flwr"
    program.write_text(f"#!{sys.executable}\nimport os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    program.chmod(0o700)
    script = f"""
import sys
from federated.flower import __main__ as commands
commands._wait_for = lambda host, port, patience: None
sys.executable = {str(tmp_path / "python")!r}
sys.exit(commands.main(["stop", "3", "--insecure"]))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as command:
        number = int(command.stdout.readline())
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_ctrl_c_while_a_superlink_is_awaited_ends_without_a_traceback(flower, monkeypatch):
    def interrupted(host, port, patience):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "_wait_for", interrupted)
    assert commands.main(["stop", "3", "--insecure"]) == 130 and not flower


@pytest.mark.parametrize(
    "arguments",
    [
        ["supernode", "--superlink", "nowhere", "--node-config", NODE],
        ["run", "--superlink", "nowhere", "--run-config", RUN],
        ["register"],
        ["register", "--name", "key.pub"],
        ["stop"],
        ["stop", "first"],
        ["status", "--json"],
        ["start"],
        [],
    ],
)
def test_bad_commands_say_what_is_accepted(arguments, flower, capsys):
    with pytest.raises(SystemExit):
        commands.main(arguments)
    assert not flower and "usage" in capsys.readouterr().err


def test_the_app_is_where_it_is_said_to_be(capsys):
    assert commands.main(["app"]) == 0
    assert (commands.Path(capsys.readouterr().out.strip()) / "pyproject.toml").exists()


def test_a_run_waits_for_its_superlink_to_listen():
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        late = threading.Timer(0.3, link.listen)
        late.start()
        commands._wait_for("127.0.0.1", link.getsockname()[1])
        assert not late.is_alive()
        late.join()
    commands._wait_for("no such host", 1)


def answering(link, heard, replies):
    """Take requests on a socket, one a connection, and count the bytes both ways."""
    for reply in replies:
        connection, _ = link.accept()
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            head, _, body = request.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            while len(body) < length:
                body += connection.recv(65536)
            heard.append((len(head) + 4 + len(body), len(reply)))
            connection.sendall(reply)


def test_bytes_are_counted_as_they_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", httpx.HTTPTransport.handle_request)
    path, heard = tmp_path / "meter", []
    monkeypatch.setenv(wire.VARIABLE, str(path))
    assert wire.reading() is None
    bodies = [b"", b"x" * 100_000, b"yes"]
    replies = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(b) + b for b in bodies]
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        link.listen()
        port = link.getsockname()[1]
        thread = threading.Thread(target=answering, args=(link, heard, replies))
        thread.start()
        wire.count_requests(wire.Meter(path), port)
        with httpx.Client() as client:
            for sent in (b"", b"z" * 50_000, b"\x00\x01"):
                client.post(f"http://127.0.0.1:{port}/v1/fleet/pull?a=b", content=sent).raise_for_status()
        thread.join()
    assert wire.reading() == wire.Reading("meter", *(sum(column) for column in zip(*heard, strict=True)))
    path.write_bytes(b"short")
    assert wire.reading() is None
