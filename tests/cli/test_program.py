from __future__ import annotations

import subprocess
import sys

import pytest

from sparrowboost.cli import main, make_parser


def test_a_wrong_call_is_exit_code_2(capsys):
    for call in ([], ["fly"], ["ingest"]):
        with pytest.raises(SystemExit) as caught:
            main(call)
        assert caught.value.code == 2
    assert "usage: sparrow" in capsys.readouterr().err


@pytest.mark.parametrize(
    "code", ["import sparrowboost", "from sparrowboost.cli import main; main(['--help'])"]
)
def test_importing_and_asking_for_help_load_nothing_heavy(code):
    check = (
        f"import sys, contextlib\nwith contextlib.suppress(SystemExit):\n    {code}\n"
        "heavy = {'numba', 'pyarrow', 'numpy', 'sklearn', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


def test_the_package_runs_as_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "sparrowboost", "--version"], capture_output=True, check=True
    )
    assert run.stdout.startswith(b"sparrow ")


def test_every_command_explains_itself_with_an_example(capsys):
    commands = make_parser()._subparsers._group_actions[0].choices
    assert set(commands) == {
        "demo", "ingest", "inspect", "train", "predict", "evaluate", "importance", "export",
    }  # fmt: skip
    for name in commands:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        assert f"example:\n  sparrow {name} " in capsys.readouterr().out
