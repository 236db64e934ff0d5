"""Probes: their variables, the cache of their results, and tools that a template leaves out."""

from typing import Any

import pytest

from services.tokenizer.template_probe import CACHED_RESULTS, NotProbedError, ProbeCache, ignores_tools, probe_variables
from services.tokenizer.template_sandbox import compiled


def test_requests_with_other_tools_and_documents_share_the_variables() -> None:
    one = probe_variables({"a": 1, "b": [2], "documents": [{"text": "one"}]}, True)
    other = probe_variables({"documents": [{"text": "two"}, {}], "b": [2], "a": 1}, True)
    assert one == other and len(one.values["documents"]) == 1


@pytest.mark.parametrize("kwargs", [{}, {"a": 2}, {"a": 1, "documents": [{}]}])
def test_other_variables_have_another_digest(kwargs: dict[str, Any]) -> None:
    digests = {probe_variables(kwargs, has_tools).digest for has_tools in (True, False)}
    assert len(digests | {probe_variables({"a": 1}, True).digest}) == 3


def test_a_cache_probes_once_and_forgets_what_was_not_used_for_longest() -> None:
    cache = ProbeCache()
    assert [cache.get(b"a", lambda: 1), cache.get(b"a", lambda: 2)] == [1, 1]
    for number in range(CACHED_RESULTS - 1):
        cache.get(str(number).encode(), lambda: 3)
    assert [cache.get(b"a", lambda: 4), cache.get(b"b", lambda: 5), len(cache)] == [1, 5, CACHED_RESULTS]
    assert [cache.get(b"a", lambda: 6), cache.get(b"0", lambda: 7)] == [1, 7], "the one that was used lately stays"


def test_a_cache_that_must_not_probe_takes_the_results_of_another() -> None:
    cache, other = ProbeCache(may_probe=False), ProbeCache()
    with pytest.raises(NotProbedError):
        cache.get(b"a", lambda: pytest.fail("it probed"))
    other.get(b"a", lambda: 1)
    cache.add(other.used)
    assert cache.get(b"a", lambda: 2) == 1


@pytest.mark.parametrize(
    ("source", "is_ignored"),
    [
        ("{{ messages[0].content }}{{ tools | tojson }}", False),
        ("{{ messages[0].content }}", True),
        ("{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}", False),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ tools | length }}", True),
        ("{{ raise_exception('no') }}", False),
    ],
)
def test_a_template_that_leaves_tools_out(source: str, is_ignored: bool) -> None:
    template = compiled(source)
    variables = probe_variables({}, has_tools=True)
    assert ignores_tools(lambda messages, more: template.render(messages=messages, **more), variables) == is_ignored
