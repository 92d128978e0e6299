"""The settings file: what it may hold, how errors name their line, how the app changes it.

And the file of system prompts.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.app import chat
from specfit.app.entry import AppError
from specfit.app.keys import KEYS, keys_of
from specfit.app.settings import change_setting, read_settings, settings_path
from specfit.app.system_prompts import delete_prompt, read_prompts, save_prompt

WHOLE = """\
# mine
theme = "textual-light"   # for the day
colour_drafts = false

[chat]
model = "~/big.gguf"
temp = 0.7
ctx-size = 8192
cpu_moe = true

[keys]
regenerate = "ctrl+g"
stop = ["f6", "f7"]

[folders]
models = [
    "/data/gguf",  # the big disk
    "~/models",
]
"""


@pytest.fixture
def config(tmp_path):
    """Writes a file and gives its path."""

    def write(text: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / "config.toml"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def chat_options(path: Path) -> dict[str, object]:
    return read_settings(path).options("chat", chat.chat)


def test_everything_can_be_set(config):
    settings = read_settings(config(WHOLE))
    assert (settings.theme, settings.colour_drafts) == ("textual-light", False)
    assert settings.model_folders == (Path("/data/gguf"), Path.home() / "models")
    assert settings.options("chat", chat.chat) == {
        "model": str(Path.home() / "big.gguf"),
        "temp": 0.7,
        "ctx_size": 8192,
        "cpu_moe": True,
    }
    assert keys_of("regenerate", settings.keys()) == ("ctrl+g",)
    assert keys_of("stop", settings.keys()) == ("f6", "f7")


def test_no_file_sets_nothing(tmp_path):
    settings = read_settings(tmp_path / "none" / "config.toml")
    assert (settings.theme, settings.colour_drafts, settings.model_folders) == (None, None, ())
    assert settings.options("chat", chat.chat) == {}
    assert settings.keys() == KEYS


def test_click_takes_the_defaults_and_the_command_line_wins(config):
    defaults = chat_options(config('[chat]\ntemp = 1\nspec = "off"\n'))
    context = chat.chat.make_context("chat", ["--temp", "0.5"], default_map=defaults)
    assert (context.params["temp"], context.params["spec"]) == (0.5, "off")


def test_the_file_is_in_the_platforms_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings_path().name == "config.toml"
    assert settings_path().parent.name == "specfit"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a = 1\nb = = 2\n", 2, "not TOML"),
        ('\n\n"open\n', 3, "not TOML"),
        ('theme = "x"\n\nfoo = 1\n', 3, "foo: no setting of that name"),
        ("them = 1\n", 1, "did you mean theme?"),
        ("theme = 3\n", 1, "a text in quotes"),
        ("colour_drafts = 1\n", 1, "true or false"),
        ('chat = "x"\n', 1, "[chat]"),
        ('[folders]\nmodels = "x"\n', 2, "a list"),
        ("[folders]\nmodel = []\n", 2, "did you mean models?"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_its_line(config, text, line, part):
    path = config(text)
    with pytest.raises(AppError) as refused:
        read_settings(path)
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("[chat]\n# a\ntemperature = 1\n", 3, "no option"),
        ("[chat]\n\ntmp = 1\n", 3, "did you mean temp?"),
        ('[chat]\ntemp = "1"\n', 2, "give a number"),
        ('[chat]\nthreads = "auto"\n', 2, "a whole number"),
        ("[chat]\ntemp = true\n", 2, "give a number"),
        ("[chat]\ntemp = -1\n", 2, "not in the range"),
        ("[chat]\ntemp = nan\n", 2, "not a number"),
        ("[chat]\nthreads = 1.5\n", 2, "a whole number"),
        ("[chat]\ncpu-moe = 1\n", 2, "true or false"),
        ("[chat]\nmodel = 3\n", 2, "a text in quotes"),
        ("[batch]\ntemp = -1\n[chat]\ntemp = -1\n", 4, "not in the range"),
        ("x = 1\nchat = {temp = -1}\n".removeprefix("x = 1\n"), 1, "not in the range"),
        ("chat.temp = -1\n", 1, "not in the range"),
    ],
)
def test_a_wrong_option_is_named_by_its_line(config, text, line, part):
    path = config(text)
    with pytest.raises(AppError) as refused:
        chat_options(path)
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert part in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ('[keys]\nregenrate = "f6"\n', 2, 'did you mean "regenerate"?'),
        ("[keys]\nstop = 1\n", 2, "give a key"),
        ("[keys]\nstop = [1]\n", 2, "give a key"),
        ('[keys]\nhelp = "f6"\nstop = ""\n', 3, "is not a key"),
        ('[keys]\nstop = "f6"\n\nregenerate = "f6"\n', 4, "both stop and regenerate"),
    ],
)
def test_a_wrong_key_is_named_by_its_line(config, text, line, part):
    path = config(text)
    with pytest.raises(AppError) as refused:
        read_settings(path).keys()
    assert f"line {line}: " in str(refused.value)
    assert part in str(refused.value)


def test_a_file_that_is_not_text_or_cannot_be_read_is_one_sentence(config, tmp_path):
    with pytest.raises(AppError, match="UTF-8"):
        read_settings(config('theme = "ä"', "latin-1"))
    with pytest.raises(AppError, match="directory"):
        read_settings(tmp_path)


def test_a_change_keeps_comments_and_everything_else(config):
    path = config(WHOLE)
    change_setting(path, "theme", "nord")
    change_setting(path, "folders.models", ["/a", "/b"])
    change_setting(path, "colour_drafts", True)
    changed = path.read_text()
    assert 'theme = "nord"   # for the day' in changed
    assert changed.startswith("# mine\n")
    settings = read_settings(path)
    assert settings.model_folders == (Path("/a"), Path("/b"))
    assert settings.colour_drafts is True
    assert settings.content["chat"] == tomllib.loads(WHOLE)["chat"]
    assert settings.content["keys"] == tomllib.loads(WHOLE)["keys"]


@pytest.mark.parametrize(
    "text", ["", "# only this", "[chat]\ntemp = 1", "[folders]\n", "a.b = 1\n\n[x]\ny = 2\n"]
)
def test_what_is_not_there_yet_is_added_in_its_place(config, text):
    path = config(text)
    change_setting(path, "theme", "nord")
    change_setting(path, "folders.models", ["/a"])
    assert tomllib.loads(path.read_text()) == {
        **tomllib.loads(text),
        "theme": "nord",
        "folders": {"models": ["/a"]},
    }
    assert all(line in path.read_text() for line in text.splitlines())


def test_the_first_change_begins_the_file(tmp_path):
    path = tmp_path / "new" / "config.toml"
    change_setting(path, "theme", "nord")
    assert read_settings(path).theme == "nord"
    assert [file.name for file in path.parent.iterdir()] == ["config.toml"]


def test_a_file_written_too_cleverly_is_left_alone(config):
    path = config('folders = {models = ["/a"]}\n')
    with pytest.raises(AppError, match="only you can change"):
        change_setting(path, "folders.models", ["/b"])
    assert path.read_text() == 'folders = {models = ["/a"]}\n'


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_a_value(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    change_setting(path, "theme", text)
    assert read_settings(path).theme == text


def test_prompts_are_kept_by_name(tmp_path):
    path = tmp_path / "data" / "prompts.json"
    assert read_prompts(path) == {}
    save_prompt(path, "  zu  Haus ", "Du bist 日本語 😀")
    save_prompt(path, "Brief", "Be brief.")
    assert read_prompts(path) == {"Brief": "Be brief.", "zu Haus": "Du bist 日本語 😀"}
    assert list(read_prompts(path)) == ["Brief", "zu Haus"]
    assert save_prompt(path, "Brief", "Briefer.")["Brief"] == "Briefer."
    assert delete_prompt(path, "Brief") == {"zu Haus": "Du bist 日本語 😀"}
    assert delete_prompt(path, "never there") == read_prompts(path)


@pytest.mark.parametrize(("name", "text"), [("", "x"), (" ", "x"), ("a", " "), ("a" * 81, "x")])
def test_a_prompt_needs_name_and_text(tmp_path, name, text):
    with pytest.raises(AppError):
        save_prompt(tmp_path / "prompts.json", name, text)
    assert not (tmp_path / "prompts.json").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_a_damaged_file_of_prompts_is_told_and_not_overwritten(tmp_path, content):
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises(AppError, match=r"prompts\.json"):
        save_prompt(path, "a", "b")
    assert path.read_text() == content
    assert [file.name for file in tmp_path.iterdir()] == ["prompts.json"]


def test_a_full_disk_leaves_the_old_prompts(tmp_path, monkeypatch):
    path = tmp_path / "prompts.json"
    save_prompt(path, "a", "b")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AppError, match="No space"):
        save_prompt(path, "c", "d")
    assert read_prompts(path) == {"a": "b"}
    assert [file.name for file in tmp_path.iterdir()] == ["prompts.json"]


def test_what_can_be_automatic_can_be_set_so(config):
    text = '[chat]\nexpert-cache = "auto"\ngpu-layers = "auto"\nn-cpu-moe = 3\n'
    assert chat_options(config(text)) == {
        "expert_cache": "auto",
        "gpu_layers": "auto",
        "n_cpu_moe": 3,
    }
