"""Options: defaults, the environment, and errors that name the field or the variable."""

import logging
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from vtc import Options
from vtc.errors import InvalidOptionError, UnknownChoiceError, UnknownOptionError, VtcError
from vtc.log import set_level
from vtc.options import check_engine, check_objective, option_names


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Options.from_env({}) == Options()
    assert Options().freeze is False


def test_every_option_has_a_variable_and_documentation(tmp_path: Path) -> None:
    given = {
        "VTC_FREEZE": "yes",
        "VTC_SEARCH": "exhaustive",
        "VTC_COST": "static",
        "VTC_VERIFY": "0",
        "VTC_PROFILE_BUDGET_S": "1.5",
        "VTC_MAX_EXHAUSTIVE": "8",
        "VTC_MIN_GAIN_US": "0",
        "VTC_CACHE_DIR": str(tmp_path),
        "VTC_MATERIALIZE": "cat_1, region2",
        "VTC_CUDA_GRAPHS": "off",
        "VTC_PREPACK_MIB": "64.5",
        "VTC_LOG_LEVEL": "debug",
        "VTC_SOMETHING_ELSE": "1",
    }
    assert Options.from_env(given) == Options(
        freeze=True,
        search="exhaustive",
        cost="static",
        verify=False,
        profile_budget_s=1.5,
        max_exhaustive=8,
        min_gain_us=0.0,
        cache_dir=tmp_path,
        materialize=frozenset({"cat_1", "region2"}),
        cuda_graphs=False,
        prepack_mib=64.5,
        log_level="debug",
    )
    for name in option_names():
        assert f"VTC_{name.upper()}" in given
        assert f"\n    {name}:" in (Options.__doc__ or "")


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        ("VTC_FREEZE", "maybe", InvalidOptionError),
        ("VTC_PROFILE_BUDGET_S", "soon", InvalidOptionError),
        ("VTC_PROFILE_BUDGET_S", "nan", InvalidOptionError),
        ("VTC_MAX_EXHAUSTIVE", "1.5", InvalidOptionError),
        ("VTC_SEARCH", "greddy", UnknownChoiceError),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str, error: type[VtcError]) -> None:
    with pytest.raises(error) as raised:
        Options.from_env({variable: value})
    assert value in str(raised.value)
    assert variable.removeprefix("VTC_").lower() in str(raised.value).lower()


@pytest.mark.parametrize(
    "fields",
    [
        {"freeze": 1},
        {"profile_budget_s": -1.0},
        {"min_gain_us": "2"},
        {"max_exhaustive": 40},
        {"max_exhaustive": True},
        {"search": "random"},
        {"cost": None},
        {"materialize": 3},
    ],
)
def test_bad_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(VtcError, match=next(iter(fields))):
        Options(**fields)


def test_of_takes_options_a_mapping_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTC_MIN_GAIN_US", "7")
    assert Options.of(None).min_gain_us == 7.0
    assert Options.of({"freeze": True}) == Options(freeze=True, min_gain_us=7.0)
    assert Options.of(Options()) == Options()
    with pytest.raises(UnknownOptionError, match="did you mean 'freeze'"):
        Options.of({"freese": True})


def test_materialize_takes_names_or_all() -> None:
    some = Options(materialize=frozenset({"cat_1"}))
    assert some.materializes("cat_1")
    assert not some.materializes("cat_2")
    every: Any = "all"
    assert Options(materialize=every).materializes("cat_2")
    assert not Options().materializes("cat_1")


def test_options_are_frozen_and_hashable() -> None:
    options = Options()
    with pytest.raises(FrozenInstanceError):
        options.freeze = True  # type: ignore[misc]
    assert hash(options) == hash(Options())


def test_engines_and_objectives_are_checked_by_name() -> None:
    check_engine("auto")
    check_objective("memory")
    with pytest.raises(UnknownChoiceError, match="engine 'tpu'"):
        check_engine("tpu")
    with pytest.raises(UnknownChoiceError, match="objective 'speed'"):
        check_objective("speed")


def test_log_level_applies_to_the_logger_of_vtc() -> None:
    logger = logging.getLogger("vtc")
    before = logger.level
    try:
        set_level("debug")
        assert logging.getLogger("vtc.lowering").isEnabledFor(logging.DEBUG)
        set_level("error")
        assert not logging.getLogger("vtc.lowering").isEnabledFor(logging.WARNING)
    finally:
        logger.setLevel(before)
