"""A chat becomes the same text as in the library that models are published with."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from foredraft.chat_template import ChatTemplate
from foredraft.engine.model_config import UnsupportedModel
from foredraft.params import InvalidField
from foredraft.request import ChatMessage

CHATS = [
    [("user", "Hi")],
    [("system", "Be brief."), ("user", "What is <b>this</b> & that?")],
    [("user", "a"), ("assistant", "b"), ("user", "日本語 😀\n\n  {{ x }}")],
]


@pytest.mark.parametrize("chat", CHATS)
def test_default_model(default_model, chat):
    reference = AutoTokenizer.from_pretrained(default_model).apply_chat_template(
        [{"role": role, "content": content} for role, content in chat],
        tokenize=False,
        add_generation_prompt=True,
    )
    messages = [ChatMessage(role, content) for role, content in chat]
    assert ChatTemplate(default_model).render(messages) == reference


def write(directory, template, **config):
    content = {"chat_template": template, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(content), "utf-8")
    return ChatTemplate(directory)


def test_helpers_of_published_templates(tmp_path):
    template = write(
        tmp_path,
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}\n"
        "  {{ bos_token }}{{ m | tojson }}{% endfor %}{{ strftime_now('%%') }}",
        bos_token={"content": "<s>"},
    )
    text = template.render([ChatMessage("user", "<é>")] * 3)
    assert text == '  <s>{"role": "user", "content": "<é>"}' * 2 + "%"


def test_a_template_file_wins(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("file", "utf-8")
    assert write(tmp_path, "config").render([ChatMessage("user", "a")]) == "file"


def test_named_templates(tmp_path):
    named = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    assert write(tmp_path, named).render([ChatMessage("user", "a")]) == "d"


@pytest.mark.parametrize(
    "template",
    [None, "{{ raise_exception('roles must alternate') }}", "{{ messages.append(1) }}"],
)
def test_refusals_name_the_messages(tmp_path, template):
    with pytest.raises(InvalidField, match="messages"):
        write(tmp_path, template).render([ChatMessage("user", "a")])


def test_an_empty_chat_is_refused(tmp_path):
    with pytest.raises(InvalidField, match="at least one"):
        write(tmp_path, "x").render([])


NAMED = r"must be a text, or a list of objects with name and template"
TEMPLATE = r"tokenizer_config\.json: chat_template is no template: line 2: "
TOKEN = r"must be a text, or an object with a text as content"


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json is not valid JSON"),
        ("tokenizer_config.json", b"\xff", r"tokenizer_config\.json is not valid JSON"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config\.json must hold a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 5}', rf"config\.json: chat_template {NAMED}"),
        ("tokenizer_config.json", b'{"chat_template": [5]}', NAMED),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', NAMED),
        ("tokenizer_config.json", b'{"chat_template": [{"name": [], "template": ""}]}', NAMED),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "default", "template": 5}]}',
            NAMED,
        ),
        ("tokenizer_config.json", b'{"chat_template": "a\\n{% if"}', TEMPLATE),
        ("tokenizer_config.json", b'{"bos_token": 5}', rf"config\.json: bos_token {TOKEN}, not 5"),
        ("tokenizer_config.json", b'{"eos_token": {}}', rf"eos_token {TOKEN}, not {{}}"),
        ("chat_template.json", b"no json", r"chat_template\.json is not valid JSON"),
        ("chat_template.json", b'{"chat_template": {}}', rf"chat_template\.json: .* {NAMED}"),
        ("chat_template.jinja", b"\xff", r"chat_template\.jinja cannot be read"),
        ("chat_template.jinja", b"{{", r"chat_template\.jinja is no template: line 1"),
    ],
)
def test_a_broken_file_is_named_when_it_is_loaded(tmp_path, file, content, text):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UnsupportedModel, match=text):
        ChatTemplate(tmp_path)


def test_without_files_there_is_no_template(tmp_path):
    with pytest.raises(InvalidField, match="no chat template"):
        ChatTemplate(tmp_path).render([ChatMessage("user", "a")])
