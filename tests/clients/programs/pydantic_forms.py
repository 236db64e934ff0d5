"""The report of forms.py as a class of pydantic, which most clients in Python take."""

from typing import Literal

from forms import check_report
from pydantic import BaseModel, ConfigDict, Field
from report import check


class Report(BaseModel):
    """Reports the weather."""

    model_config = ConfigDict(extra="forbid")  # not every client adds `additionalProperties: false` by itself

    city: Literal["Paris", "Berlin", "Oslo"]
    sky: Literal["sunny", "cloudy", "rainy"]
    degrees: int = Field(ge=0, le=40)
    certain: bool


def check_instance(report: object) -> None:
    check(isinstance(report, Report), f"the answer is {report!r}, no Report")
    check_report(report.model_dump())
