"""A program ends with the process that runs it: each test starts that process, and the program from it."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr")

PARENT = """
import os, sys
from federated.flower.child import run_program
outcome = run_program([sys.executable, "-c", sys.argv[1]], os.environ, pass_on=sys.stdout)
print(outcome.status, outcome.signal, repr(outcome.output))
"""
SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True)); " + SLEEPS


def start(program, **options):
    command = [sys.executable, "-c", PARENT, program]
    heeding = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **heeding, **options)


def ended(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return False


def test_output_is_passed_on_as_it_comes():
    with start("import time; print('first', flush=True); input()", stdin=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == "first\n"
        said, _ = parent.communicate("\n")
        assert said == "0 0 'first\\n'\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_signal_ends_the_program_too(number, whole_group):
    with start(SLEEPS) as parent:
        child = int(parent.stdout.readline())
        (os.killpg if whole_group else os.kill)(parent.pid, number)
        said, _ = parent.communicate(timeout=60)
    assert said == f"-15 {number:d} '{child}\\n'\n" and ended(child) and parent.returncode == 0


def test_a_second_signal_kills():
    with start(STUBBORN) as parent:
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGTERM)
        assert parent.stdout.readline() == "no\n" and not ended(child)
        parent.send_signal(signal.SIGINT)
        said, _ = parent.communicate(timeout=60)
    assert said.startswith("-9 15 ") and ended(child)


def test_ctrl_c_that_a_process_ignores_ends_nothing():
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN){PARENT}"
    with subprocess.Popen([sys.executable, "-c", ignoring, SLEEPS], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert not ended(child)
        parent.send_signal(signal.SIGTERM)
        said, _ = parent.communicate(timeout=60)
    assert said.startswith("-15 15 ") and ended(child)
