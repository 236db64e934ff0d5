"""The table has every flag of vLLM once, and each row says what a user needs to know."""

from services.options.commands import serve_settings
from services.options.setting import Setting, UsageError
from services.options.vllm.flag import LIMITS, SWITCH, Flag
from services.options.vllm.reader import settled
from services.options.vllm.table import FLAGS, GROUPS, SHORT
from tests.options.vllm import flags_of_vllm

ROWS = list(FLAGS.values())
OWN = serve_settings()
NAMES = {"Python", "LoRA", "AWS", "OTLP", "YAML"}  # that a clause may begin with


def of_kind(*kinds: str) -> list[Flag]:
    return [flag for flag in FLAGS.values() if flag.kind in kinds]


def test_every_flag_of_vllm_has_a_row() -> None:
    names = {*flags_of_vllm.ENGINE.split(), *flags_of_vllm.SERVER.split()}
    assert len(names) > 280
    assert sorted(names - FLAGS.keys()) == []


def test_every_short_form_of_vllm_is_known() -> None:
    assert set(flags_of_vllm.SHORT.split()) - SHORT.keys() == set()
    assert SHORT["-tp"] == "--tensor-parallel-size" and SHORT["-q"] == "--quantization"


def test_no_flag_has_two_rows() -> None:
    names = [flag.name for flags in GROUPS.values() for flag in flags]
    assert sorted(names) == sorted(FLAGS)
    assert len(SHORT) == sum(len(flag.short) for flag in FLAGS.values())


def test_a_row_is_the_same_exactly_if_there_is_such_an_option() -> None:
    """`model` is no flag here, and `--config` is none of the options."""
    same = {flag.name.replace("-", "_") for flag in of_kind("same")}
    assert same - OWN.keys() == {"config"}
    others = {flag.name.replace("-", "_") for flag in of_kind("no effect", "missing", "other name")}
    assert others & OWN.keys() == {"model"}
    assert [flag.name for flag in FLAGS.values() if flag.taken_as and flag.taken_as not in OWN] == []


def settle(flag: Flag, text: str | bool) -> tuple[tuple[str, ...], str]:
    """Returns the flags without effect, and why it is refused: one of both is empty."""

    def convert(one: Setting, title: str, raw: str | bool) -> object:
        return one.convert(title, raw if isinstance(raw, str) else str(raw).lower())

    try:
        return settled({f"--{flag.name}": text}, convert).without_effect, ""
    except UsageError as error:
        return (), str(error)


def test_a_row_says_why() -> None:
    """One clause, so that `--flag: CLAUSE` is a sentence and a cell of a table."""
    for flag in ROWS:
        assert flag.clause or flag.kind == "same" or flag.taken_as, flag.name
        assert not flag.clause.endswith(".") and "|" not in flag.clause and "\n" not in flag.clause, flag.name
        assert flag.clause[:1] == flag.clause[:1].lower() or flag.clause.split()[0] in NAMES, flag.name
        assert (flag.harmless is None) == (flag.kind == "no effect"), flag.name


def test_a_switch_without_effect_is_taken_on_and_off() -> None:
    switches = [flag for flag in of_kind("no effect") if flag.form is SWITCH]
    assert len(switches) > 60
    for flag in switches:
        assert settle(flag, True) == ((f"--{flag.name}",), "")
        assert settle(flag, False) == ((f"--no-{flag.name}",), "")


def test_a_switch_for_what_is_missing_is_refused_and_taken_when_it_is_off() -> None:
    switches = [flag for flag in of_kind("missing", "other name") if flag.form is SWITCH]
    assert len(switches) > 20
    for flag in switches:
        assert settle(flag, True) == ((), f"--{flag.name}: {flag.clause}")
        assert settle(flag, False) == ((f"--no-{flag.name}",), "")


def test_a_value_that_asks_for_what_is_missing_is_refused_with_the_clause() -> None:
    """Of the values here, each flag has one that is of its form and not harmless."""
    for flag in of_kind("missing", "other name"):
        if flag.form is SWITCH or flag.taken_as:
            continue
        told = [settle(flag, value)[1] for value in ("7", "other", '{"image": 7}', *flag.form.choices)]
        assert any(line.startswith(f"--{flag.name}") and line.endswith(flag.clause) for line in told), (flag.name, told)


def test_a_value_that_asks_for_nothing_is_taken() -> None:
    for flag in of_kind("missing", "other name"):
        if flag.form in (SWITCH, LIMITS):
            continue
        for harmless in flag.harmless or ():
            assert settle(flag, str(harmless)) == ((f"--{flag.name}",), ""), (flag.name, harmless)
