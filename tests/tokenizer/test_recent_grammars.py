"""The grammars of recent requests are built once; how many are remembered has two limits."""

import pytest

from services.tokenizer.recent_grammars import AnswerGrammar, RecentGrammars


class Builds:
    def __init__(self, recent: RecentGrammars) -> None:
        self.recent = recent
        self.built: list[str] = []

    def get(self, asked: str, text: str = "x") -> AnswerGrammar:
        def build() -> AnswerGrammar:
            self.built.append(asked)
            return AnswerGrammar(text)

        return self.recent.get(asked.encode(), build)


def test_the_same_question_is_built_once() -> None:
    builds = Builds(RecentGrammars())
    assert builds.get("a") is builds.get("a")
    assert builds.built == ["a"]


def test_the_least_recently_used_is_dropped() -> None:
    builds = Builds(RecentGrammars(max_entries=2))
    for asked in "abaca":
        builds.get(asked)
    assert builds.built == ["a", "b", "c"]
    builds.get("b")
    assert builds.built == ["a", "b", "c", "b"]


def test_bytes_are_bounded_as_well() -> None:
    builds = Builds(RecentGrammars(max_bytes=10))
    for asked, size in [("a", 6), ("b", 4), ("a", 6), ("c", 1), ("a", 6), ("d", 11), ("a", 6)]:
        builds.get(asked, "x" * size)
    assert builds.built == ["a", "b", "c", "d", "a"]


def test_an_error_is_not_remembered() -> None:
    recent = RecentGrammars()

    def fail() -> AnswerGrammar:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            recent.get(b"a", fail)
    assert recent.get(b"a", lambda: AnswerGrammar("x")).text == "x"
