"""Reports are lines of JSON that add up."""

from collections import Counter

from tests.chaos.report import Report, kind_of, total


def _report(seed: int, **more: object) -> Report:
    report = Report(parts=[f"{seed} two tokenizers"], minutes=2.0, faults=Counter({"worker, kill": 3}), client_cpu=0.1)
    report.live = Counter({180: 2, 200: 1})
    report.pauses["worker, kill"] += Counter({130: 2})
    for name, value in more.items():
        setattr(report, name, value)
    return report


def test_parts_add_up() -> None:
    summed = total([_report(1).line(), _report(2, client_cpu=0.3, requests=Counter({"lost": 1})).line()])
    assert summed.parts == ["1 two tokenizers", "2 two tokenizers"] and summed.minutes == 4.0
    assert summed.faults == {"worker, kill": 6} and summed.live == {180: 4, 200: 2}
    assert summed.pauses == {"worker, kill": Counter({130: 4})} and summed.client_cpu == 0.3
    assert not summed.clean and total([_report(1).line()]).clean


def test_the_report_for_readers_has_all_figures() -> None:
    text = "\n".join(_report(1).lines())
    for part in ("3 worker, kill", "kinds: kill 100.0%", "least 180, median 180", "0 lost, 0 different", "1.30"):
        assert part in text


def test_reasons_without_what_differs() -> None:
    assert kind_of("status 503: chatcmpl-0a1b2c3d4e5f") == kind_of("status 503: chatcmpl-ffffffff0000")
