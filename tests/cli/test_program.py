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


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ([], "sparrow: error: a command is missing; see `sparrow --help`."),
        (["--hlep"], "sparrow: error: unknown option --hlep; did you mean --help?"),
        (
            ["train", "t.csv", "--lable=y", "-o", "m.json"],
            "sparrow train: error: unknown option --lable; did you mean --label?",
        ),
        (
            ["train", "t.csv", "-o", "m.json", "--n_estimators", "9"],
            "unknown option --n_estimators; did you mean --n-estimators?",
        ),
        (
            ["inspect", "--frobnicate", "store"],
            "unknown option --frobnicate; see `sparrow inspect --help`.",
        ),
        (["inspect", "a", "b"], "sparrow inspect: error: unknown argument b; see"),
    ],
)
def test_a_wrong_call_says_what_to_write_instead(capsys, call, says):
    with pytest.raises(SystemExit) as caught:
        main(call)
    assert caught.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: sparrow ")
    assert says in error


def test_the_constants_of_the_paper_stand_last_in_the_help_of_train(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    before, after = capsys.readouterr().out.split("the paper's constants (rarely changed):")
    options = ("--stopping", "--sigma", "--rho", "--gamma-0", "--theta")
    before = before.partition("options:")[2]
    assert all(f"  {option} " in after and f"  {option} " not in before for option in options)
    assert "--n-estimators" in before
