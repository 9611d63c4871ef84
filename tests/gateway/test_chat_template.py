"""A chat becomes the same text as in the library that models are published with."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from foredraft.params import InvalidField
from foredraft.request import ChatMessage
from gateway.chat_template import ChatTemplate

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
