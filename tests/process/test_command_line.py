"""The command `keras-unison`, as a user starts it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from keras_unison import __version__
from keras_unison.cli import app
from keras_unison.cli.devices import memory
from keras_unison.cli.run import parse_devices

pytestmark = pytest.mark.process

DOCUMENT = Path(__file__).parents[2] / "docs" / "command_line.md"

# Every command with its options. A change here is a change for users.
OPTIONS = {
    "keras-unison": ["--version"],
    "run": ["--simulate", "--devices", "--backend"],
    "devices": ["--simulate", "--json"],
    "backend": ["--json"],
}
ARGUMENTS = {"run": ["script", "args"], "devices": [], "backend": ["name"]}


def _environment(home, **changes):
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KERAS_BACKEND", "COLUMNS", "NPROC")
        and not name.startswith(("KERAS_UNISON", "JAX_"))
    }
    return kept | {"KERAS_HOME": str(home), "KERAS_BACKEND": "jax"} | changes


def command(*args, home, **changes):
    """Runs the command; None as a variable's value takes it away."""
    environment = _environment(home, **changes)
    return subprocess.run(
        [sys.executable, "-m", "keras_unison", *map(str, args)],
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _script(folder, text, name="script.py"):
    path = folder / name
    path.write_text(text)
    return path


# --- the commands and their options -----------------------------------------


def _commands():
    whole = get_command(app)
    return {"keras-unison": whole, **whole.commands}


def test_the_list_of_options_has_not_changed_unseen():
    found = {
        name: [
            option
            for parameter in command_.params
            if parameter.param_type_name == "option"
            for option in parameter.opts
            if option != "--help"
        ]
        for name, command_ in _commands().items()
    }
    assert found == OPTIONS
    arguments = {
        name: [p.name for p in command_.params if p.param_type_name == "argument"]
        for name, command_ in _commands().items()
        if name != "keras-unison"
    }
    assert arguments == ARGUMENTS


def test_every_command_and_option_has_help_and_is_documented():
    document = DOCUMENT.read_text()
    for name, command_ in _commands().items():
        assert command_.help, name
        section = f"`keras-unison {name}" if name in ARGUMENTS else "`--version`"
        assert section in document
        for parameter in command_.params:
            assert parameter.help, (name, parameter.name)
        for option in OPTIONS[name]:
            assert f"`{option}" in document, (name, option)


@pytest.mark.parametrize("args", [[], ["run"], ["devices"], ["backend"]])
def test_help_imports_neither_keras_nor_a_backend(args, tmp_path):
    code = (
        "import sys\n"
        "from keras_unison.cli import main\n"
        f"sys.argv = ['keras-unison', *{args!r}, '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "heavy = {'keras', 'jax', 'tensorflow', 'torch', 'numpy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Usage: keras-unison" in done.stdout
    assert done.stdout.endswith("HEAVY []\n")


def test_version_is_printed(tmp_path):
    done = command("--version", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["run"],
        ["run", "--nonsense", "script.py"],
        ["run", "--backend", "theano", "script.py"],
        ["run", "--simulate", "0", "script.py"],
        ["run", "--simulate", "two", "script.py"],
        ["run", "--simulate", "2", "--devices", "2", "script.py"],
        ["run", "--devices", "0,,1", "script.py"],
        ["run", "-"],
        ["run", "missing.py"],
        ["run", "."],
        ["backend", "theano"],
        ["devices", "--simulate", "0"],
    ],
)
def test_wrong_usage_ends_with_2_and_a_text(args, tmp_path):
    _script(tmp_path, "print('ran')")
    done = subprocess.run(
        [sys.executable, "-m", "keras_unison", *args],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Error" in done.stderr


# --- run ---------------------------------------------------------------------


def test_everything_after_the_script_belongs_to_the_script(tmp_path):
    script = _script(tmp_path, "import sys; print(sys.argv)")
    args = ["--simulate", "3", "--help", "-v", "--", "--version", "--devices=9", "x"]
    done = command("run", script, *args, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[str(script), *args]}\n"


def test_a_script_sees_what_python_itself_would_show_it(tmp_path):
    text = (
        "import sys, pickle, helper\n"
        "class Thing: pass\n"
        "print(__name__, __file__, __spec__, __doc__, sys.path[0], helper.VALUE)\n"
        "print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)\n"
        "print(sorted(globals()))\n"
        "print(sys.modules['__main__'].Thing is Thing)\n"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    _script(folder, "VALUE = 5", "helper.py")
    script = _script(folder, text)
    ours = command("run", script, home=tmp_path)
    python = subprocess.run(
        [sys.executable, str(script)],
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ours.returncode == 0, ours.stderr
    ours_lines, python_lines = ours.stdout.splitlines(), python.stdout.splitlines()
    assert ours_lines[:2] == python_lines[:2]
    assert ours_lines[3] == python_lines[3]
    hidden = {"__loader__", "__package__", "__annotations__"}
    assert set(eval(ours_lines[2])) - hidden == set(eval(python_lines[2])) - hidden


@pytest.mark.parametrize(
    ("ending", "code", "printed"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise SystemExit(3)", 3, ""),
        ("raise KeyboardInterrupt", 130, None),
        ("raise EOFError", 1, None),
        ("raise BrokenPipeError(32, 'x')", 1, None),
        ("os._exit(9)", 9, ""),
    ],
)
def test_the_exit_code_of_the_script_is_kept(ending, code, printed, tmp_path):
    script = _script(tmp_path, f"import os, sys\n{ending}\n")
    done = command("run", script, home=tmp_path)
    assert done.returncode == code
    if printed is not None:
        assert done.stderr == printed


def test_control_c_ends_with_130(tmp_path):
    text = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    script = _script(tmp_path, text)
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_unison", "run", str(script)],
        env=_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    raise ValueError('bad label')\n\nf()\n",
        "try:\n    1 / 0\nexcept Exception as e:\n    raise OSError('x') from e\n",
        "x = (\n",
        "class E(Exception):\n    pass\n\nraise E('own')\n",
        "import sys\nsys.excepthook = lambda *a: print('own', a[1])\nraise OSError\n",
    ],
)
def test_a_traceback_is_the_one_that_python_prints(text, tmp_path):
    script = _script(tmp_path, text)
    ours = command("run", script, home=tmp_path)
    python = subprocess.run(
        [sys.executable, str(script)],
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ours.returncode == 1
    assert (ours.stdout, ours.stderr) == (python.stdout, python.stderr)


def test_the_traceback_ends_with_the_fix(tmp_path):
    script = _script(tmp_path, "batch_size = 128 * num_gpus\n")
    done = command("run", script, home=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-2] == "NameError: name 'num_gpus' is not defined"
    assert lines[-1].startswith("To fix: ")
    assert "len(keras_unison.devices())" in lines[-1]


def test_simulated_devices_are_there_before_the_script_begins(tmp_path):
    text = (
        "import os, jax\n"
        "print(os.environ['KERAS_UNISON_SIMULATE'], len(jax.devices()))\n"
        "import keras_unison\n"
        "print([device.name for device in keras_unison.devices()])\n"
    )
    done = command("run", "--simulate", 3, _script(tmp_path, text), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 3\n['cpu:0', 'cpu:1', 'cpu:2']\n"


def test_devices_are_checked_before_the_script_begins(tmp_path):
    script = _script(tmp_path, "print('ran')")
    changes = {"KERAS_UNISON_SIMULATE": "2"}
    for wrong in ("5", "0,7", "gpu:0", "1,1"):
        done = command("run", "--devices", wrong, script, home=tmp_path, **changes)
        assert (done.returncode, done.stdout) == (3, ""), wrong
        assert "This machine has 2 device(s)" in done.stderr
        assert "Traceback" not in done.stderr


def test_chosen_devices_reach_the_script(tmp_path):
    text = "import os; print(os.environ['KERAS_UNISON_DEVICES'])"
    script = _script(tmp_path, text)
    changes = {"KERAS_UNISON_SIMULATE": "2"}
    for choice in ("2", "1,0", "cpu:1"):
        done = command("run", "--devices", choice, script, home=tmp_path, **changes)
        assert (done.returncode, done.stdout) == (0, f"{choice}\n"), done.stderr


def test_the_text_of_a_choice_is_a_count_or_a_list():
    assert parse_devices("2") == 2
    assert parse_devices("0,2") == [0, 2]
    assert parse_devices("gpu:0, gpu:1") == ["gpu:0", "gpu:1"]
    assert parse_devices("gpu:1") == ["gpu:1"]


def test_the_option_backend_wins_over_environment_and_file(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "theano"}')
    script = _script(tmp_path, "import keras; print(keras.config.backend())")
    args = ["run", "--backend", "jax", script]
    for named in ("torch", None):
        done = command(*args, home=tmp_path, KERAS_BACKEND=named)
        assert (done.returncode, done.stdout) == (0, "jax\n"), done.stderr


def test_a_script_that_chooses_its_backend_keeps_it(tmp_path):
    text = (
        "import os\n"
        'os.environ["KERAS_BACKEND"] = "jax"\n'
        "import keras\n"
        "print(keras.config.backend())\n"
    )
    script = _script(tmp_path, text)
    for args in (["run"], ["run", "--simulate", "2"]):
        done = command(*args, script, home=tmp_path, KERAS_BACKEND="torch")
        assert (done.returncode, done.stdout) == (0, "jax\n"), done.stderr
    done = command("run", "--backend", "torch", script, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "line 2" in done.stderr


def test_a_backend_that_comes_too_late_is_refused(tmp_path):
    script = _script(tmp_path, "import keras; print(keras.config.backend())")
    done = command(
        "run",
        "--backend",
        "torch",
        script,
        home=tmp_path,
        KERAS_UNISON_SIMULATE="2",
    )
    # Either it is honoured, or it says why not; never another backend in silence.
    assert (done.returncode, done.stdout) in ((0, "torch\n"), (3, ""))
    if done.returncode == 3:
        assert "KERAS_UNISON_SIMULATE" in done.stderr


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"backend": "theano"}', "`keras-unison backend jax`"),
        ('{"backend": "cntk"}', "`keras-unison backend jax`"),
        ('{"backend": ', "line 1, column"),
    ],
)
def test_an_unusable_keras_json_stops_the_run_with_3(content, named, tmp_path):
    (tmp_path / "keras.json").write_text(content)
    script = _script(tmp_path, "print('ran')")
    done = command("run", script, home=tmp_path, KERAS_BACKEND=None)
    assert (done.returncode, done.stdout) == (3, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    won = command("run", script, home=tmp_path)
    assert (won.returncode, won.stdout) == (0, "ran\n")


def test_a_run_imports_nothing_that_the_script_does_not(tmp_path):
    text = (
        "import sys\n"
        "print({'keras', 'jax', 'tensorflow', 'torch', 'numpy'} & set(sys.modules))\n"
    )
    done = command("run", _script(tmp_path, text), home=tmp_path)
    assert done.stdout == "set()\n", done.stderr


# --- devices -----------------------------------------------------------------


def test_devices_are_printed_as_a_table(tmp_path):
    done = command("devices", "--simulate", 2, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backend jax" in done.stdout
    for word in ("name", "kind", "description", "memory", "simulated"):
        assert word in done.stdout
    rows = [line for line in done.stdout.splitlines() if "cpu:" in line]
    assert len(rows) == 2
    assert all("yes" in row for row in rows)


def test_devices_are_printed_as_json(tmp_path):
    done = command("devices", "--json", "--simulate", 2, home=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert list(facts) == ["schema_version", "backend", "devices"]
    assert (facts["schema_version"], facts["backend"]) == (1, "jax")
    keys = ["name", "kind", "description", "memory_bytes", "simulated"]
    assert [list(row) for row in facts["devices"]] == [keys, keys]
    assert [row["name"] for row in facts["devices"]] == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (2**30, "1.00 GiB"),
        (79 * 2**30 + 2**29, "79.5 GiB"),
        (139 * 2**30, "139 GiB"),
        (2048 * 2**30, "2048 GiB"),
    ],
)
def test_memory_has_three_digits(size, text):
    assert memory(size) == text


def test_devices_of_an_unusable_environment_end_with_3(tmp_path):
    (tmp_path / "keras.json").write_text("{")
    done = command("devices", home=tmp_path, KERAS_BACKEND=None)
    assert done.returncode == 3
    assert "keras.json" in done.stderr
    done = command("devices", home=tmp_path, KERAS_BACKEND="theano")
    assert done.returncode == 3
    assert "`export KERAS_BACKEND=jax`" in done.stderr


# --- backend -----------------------------------------------------------------


def test_backend_shows_what_chose_it(tmp_path):
    done = command("backend", home=tmp_path, KERAS_BACKEND=None)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "tensorflow, by default",
    )
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    done = command("backend", home=tmp_path, KERAS_BACKEND=None)
    assert done.stdout.splitlines()[0] == "jax, by keras.json"
    done = command("backend", home=tmp_path, KERAS_BACKEND="torch")
    assert done.stdout.splitlines()[0] == (
        "torch, by the environment variable KERAS_BACKEND"
    )
    assert "`unset KERAS_BACKEND`" in done.stderr


def test_backend_prints_json(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    done = command("backend", "--json", home=tmp_path, KERAS_BACKEND=None)
    assert json.loads(done.stdout) == {
        "schema_version": 1,
        "backend": "jax",
        "chosen_by": "file",
        "installed": True,
        "file": str(tmp_path / "keras.json"),
        "file_backend": "jax",
        "file_problem": None,
    }


def test_backend_writes_and_says_when_the_environment_wins(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "theano", "floatx": "float64"}')
    shown = command("backend", home=tmp_path, KERAS_BACKEND=None)
    assert shown.returncode == 3
    assert "`keras-unison backend jax`" in shown.stderr
    done = command("backend", "torch", home=tmp_path, KERAS_BACKEND=None)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "keras.json").read_text()) == {
        "backend": "torch",
        "floatx": "float64",
    }
    assert done.stderr == ""
    done = command("backend", "torch", home=tmp_path, KERAS_BACKEND="jax")
    assert done.returncode == 0
    assert "KERAS_BACKEND=jax in the environment wins" in done.stderr


def test_backend_never_overwrites_a_broken_file(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend" "jax"}')
    for args in (["backend"], ["backend", "jax"]):
        done = command(*args, home=tmp_path, KERAS_BACKEND=None)
        assert (done.returncode, done.stdout) == (3, "")
        assert "line 1, column 12" in done.stderr
    assert (tmp_path / "keras.json").read_text() == '{"backend" "jax"}'


def test_a_broken_file_is_mentioned_where_the_environment_decides(tmp_path):
    (tmp_path / "keras.json").write_text("{")
    done = command("backend", home=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("jax, ")
    assert "no valid JSON" in done.stderr
