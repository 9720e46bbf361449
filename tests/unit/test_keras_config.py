"""Reading and writing keras.json without Keras."""

import json
import os
import stat
import subprocess
import sys

import pytest

from keras_unison import keras_config
from keras_unison.errors import ConfigError

pytestmark = pytest.mark.once


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    return tmp_path


def _write(home, text):
    (home / "keras.json").write_text(text)


def test_the_environment_wins_over_the_file_which_wins_over_the_default(
    home, monkeypatch
):
    choice = keras_config.chosen_backend()
    assert (choice.backend, choice.source) == ("tensorflow", "default")
    _write(home, '{"backend": "torch"}')
    choice = keras_config.chosen_backend()
    assert (choice.backend, choice.source) == ("torch", "file")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    choice = keras_config.chosen_backend()
    assert (choice.backend, choice.source) == ("jax", "environment")


def test_an_empty_variable_decides_nothing(home, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "")
    assert keras_config.chosen_backend().source == "default"


def test_a_file_without_a_backend_leaves_the_default(home):
    _write(home, '{"floatx": "float32"}')
    assert keras_config.chosen_backend().source == "default"


def test_the_file_is_where_keras_looks(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keras_config.config_path() == tmp_path / ".keras" / "keras.json"
    monkeypatch.setenv("KERAS_HOME", "~/elsewhere")
    assert keras_config.config_path() == tmp_path / "elsewhere" / "keras.json"


def test_broken_json_names_the_file_the_line_and_the_column(home):
    _write(home, '{\n  "floatx": "float32",\n  "backend" "jax"\n}')
    with pytest.raises(ConfigError) as caught:
        keras_config.chosen_backend()
    text = str(caught.value)
    assert str(home / "keras.json") in text
    assert "line 3, column 13" in text
    assert "rm " in text


@pytest.mark.parametrize("text", ["[]", '"jax"', "3"])
def test_json_that_is_no_object_is_refused(home, text):
    _write(home, text)
    with pytest.raises(ConfigError, match="one JSON object"):
        keras_config.chosen_backend()


def test_a_file_that_is_no_text_is_refused(home):
    (home / "keras.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ConfigError, match="cannot be read"):
        keras_config.chosen_backend()


@pytest.mark.parametrize(("name", "year"), [("theano", "2017"), ("cntk", "2019")])
def test_backends_that_ended_are_named_with_the_fix(home, name, year):
    _write(home, json.dumps({"backend": name}))
    with pytest.raises(ConfigError) as caught:
        keras_config.chosen_backend()
    text = str(caught.value)
    assert name in text
    assert year in text
    assert "`keras-unison backend jax`" in text


@pytest.mark.parametrize("value", ["torhc", 3, None, ["jax"]])
def test_what_is_no_backend_is_refused(home, value):
    _write(home, json.dumps({"backend": value}))
    with pytest.raises(ConfigError, match="does not know"):
        keras_config.chosen_backend()


def test_a_wrong_variable_is_corrected_by_another_value(home, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "theano")
    with pytest.raises(ConfigError, match="`export KERAS_BACKEND=jax`"):
        keras_config.chosen_backend()


def test_writing_keeps_all_other_keys(home):
    _write(home, '{"floatx": "float64", "backend": "theano", "mine": [1, 2]}')
    keras_config.write_backend("jax")
    assert json.loads((home / "keras.json").read_text()) == {
        "floatx": "float64",
        "backend": "jax",
        "mine": [1, 2],
    }
    assert [file.name for file in home.iterdir()] == ["keras.json"]


def test_writing_makes_the_folder_and_the_file(home, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(home / "a" / "b"))
    path = keras_config.write_backend("torch")
    assert json.loads(path.read_text()) == {"backend": "torch"}


def test_a_broken_file_is_left_as_it_is(home):
    _write(home, '{"backend": ')
    with pytest.raises(ConfigError, match="line 1"):
        keras_config.write_backend("jax")
    assert (home / "keras.json").read_text() == '{"backend": '


@pytest.mark.parametrize("name", ["theano", "numpy", "JAX", ""])
def test_only_backends_that_can_train_are_written(home, name):
    with pytest.raises(ConfigError, match="tensorflow, jax, torch"):
        keras_config.write_backend(name)
    assert not (home / "keras.json").exists()


def test_writing_keeps_the_mode_and_follows_a_link(home):
    real = home / "dotfiles"
    real.mkdir()
    target = real / "keras.json"
    target.write_text("{}")
    target.chmod(0o640)
    (home / "keras.json").symlink_to(target)
    keras_config.write_backend("jax")
    assert (home / "keras.json").is_symlink()
    assert json.loads(target.read_text()) == {"backend": "jax"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_reader_never_sees_half_a_file(home):
    _write(home, json.dumps({"backend": "torch", "long": "x" * 100_000}))
    held = os.open(home / "keras.json", os.O_RDONLY)
    try:
        keras_config.write_backend("jax")
        # The old content is still whole for whoever had opened it.
        old = json.loads(os.read(held, 1_000_000))
    finally:
        os.close(held)
    assert old["backend"] == "torch"
    assert keras_config.chosen_backend().backend == "jax"


def test_a_file_in_the_place_of_the_folder_is_a_readable_error(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("KERAS_HOME", str(home / "file"))
    with pytest.raises(ConfigError, match="cannot be"):
        keras_config.write_backend("jax")


def test_a_backend_that_is_not_installed_is_named_with_its_installation(
    home, monkeypatch
):
    monkeypatch.setenv("KERAS_BACKEND", "openvino")
    if keras_config.is_installed("openvino"):
        pytest.skip("openvino is installed here")
    with pytest.raises(ConfigError, match="pip install openvino"):
        keras_config.require_backend()


def test_keras_agrees_on_the_file_and_the_backend(home):
    keras_config.write_backend("jax")
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", "import keras; print(keras.config.backend())"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "jax"
