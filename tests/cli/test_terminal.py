"""What came from elsewhere is shown by a terminal, not obeyed."""

from __future__ import annotations

import grpc
import pytest

from foredraft.cli import answer
from foredraft.cli.main import main
from foredraft.printable import one_line, without_controls

TITLE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("grüße ✓", "grüße ✓"),
        (f"a{TITLE}b", r"a\x1b]0;owned\x07b"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202egnp.exe \ud800", r"\u202egnp.exe \ud800"),
    ],
)
def test_a_line_has_printable_characters_alone(text: str, line: str) -> None:
    assert one_line(text) == line and one_line(text).isprintable()


def test_a_text_keeps_what_scripts_need() -> None:
    kept = "a\n\tb 👩\u200d🚀 \u0645\u06cc\u200c\u062e"
    assert without_controls(kept) == kept
    assert without_controls(f"a{TITLE}\r\x9b1m\x7f") == r"a\x1b]0;owned\x07\x0d\x9b1m\x7f"


@pytest.mark.parametrize(("terminal", "text"), [(True, r"\x1b[2J"), (False, "\x1b[2J")])
def test_an_answer_is_exact_unless_a_terminal_shows_it(
    terminal: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert answer.shown("\x1b[2J") == text


def test_an_error_of_a_server_is_one_harmless_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(address: str, seconds: float) -> None:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(), f"no\n{TITLE}"
        )

    monkeypatch.setattr("foredraft.cli.health._ask", fail)
    assert main(["health", "localhost:1"]) == 1
    assert capsys.readouterr().err.endswith("no\\n\\x1b]0;owned\\x07\n")
