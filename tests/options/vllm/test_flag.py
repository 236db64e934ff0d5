"""What a row means: which values are harmless, and how a refusal reads."""

import pytest

from services.options.setting import UsageError
from services.options.vllm.flag import (
    LIMITS,
    OBJECT,
    SWITCH,
    TEXT,
    at_least,
    lacks,
    media_limits,
    other,
    renamed,
    same,
    unused,
)


def test_a_flag_without_effect_takes_every_value_of_its_form() -> None:
    assert unused("swap-space", at_least(0, float)).is_harmless(16.0, {})
    with pytest.raises(UsageError, match="--swap-space: -1 must be at least 0"):
        unused("swap-space", at_least(0, float)).form.convert("--swap-space", "-1")


def test_a_missing_one_takes_the_values_that_ask_for_nothing() -> None:
    flag = lacks("tensor-parallel-size", at_least(1), "one device only", (1,))
    assert flag.is_harmless(1, {}) and not flag.is_harmless(2, {})
    assert flag.refusal("2") == "--tensor-parallel-size 2: one device only"


def test_a_switch_that_is_off_asks_for_nothing() -> None:
    for flag in (lacks("enable-lora", SWITCH, "no LoRA"), other("grpc", SWITCH, "use --grpc-port")):
        assert flag.is_harmless(False, {}) and not flag.is_harmless(True, {})


def test_one_is_not_true_and_zero_not_false() -> None:
    assert not lacks("x", SWITCH, "").is_harmless(0, {})
    assert not lacks("x", at_least(0), "", (1,)).is_harmless(True, {})


def test_a_value_that_another_option_has_is_harmless() -> None:
    flag = lacks("tokenizer", TEXT, "not apart", equal_to="model")
    assert flag.is_harmless("m", {"model": "m"}) and flag.is_harmless("/m/", {"model": "/m"})
    assert not flag.is_harmless("m", {"model": "n"}) and not flag.is_harmless("m", {})


def test_a_refusal_shows_short_values_of_what_is_missing_only() -> None:
    """A token, as of --hf-token, is not repeated."""
    assert other("hf-token", TEXT, "set HF_TOKEN").refusal("hf_secret") == "--hf-token: set HF_TOKEN"
    assert lacks("x", OBJECT, "no x").refusal('{"a": "' + "b" * 40 + '"}') == "--x: no x"


def test_media_are_counted_over_all_kinds() -> None:
    assert media_limits('{"image": 2, "video": {"count": 1, "num_frames": 32}}') == 3
    assert media_limits('{"image": 0, "video": {"count": 0}}') == 0
    for wrong in ('{"image": -1, "video": 1}', '{"image": "2"}', '{"image": true}', '{"video": {}}', "[1]"):
        with pytest.raises(ValueError, match="number of items|not a JSON object"):
            media_limits(wrong)


def test_flags_of_objects_have_dotted_forms() -> None:
    assert unused("compilation-config", OBJECT).has_dotted_forms and lacks("x", LIMITS, "").has_dotted_forms
    assert not unused("x", TEXT).has_dotted_forms


def test_other_kinds_of_rows() -> None:
    assert same("dtype").kind == "same"
    assert renamed("h11-max-header-count", at_least(1), "max_header_count").taken_as == "max_header_count"
