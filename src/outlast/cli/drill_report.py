"""What a drill found, as the HTML report's `Run`."""

from __future__ import annotations

from outlast.cli.drill_leaders import LeaderChange
from outlast.cli.drill_result import Result
from outlast.cli.drill_tables import changed
from outlast.cli.report import Mark, Records, Run


def page(result: Result) -> Run:
    """The run that `report.write` makes a page of."""
    names = {of.partition: (result.topic, of.partition) for of in result.partitions}
    resumed = {
        names[of.partition]: [
            gap.begin_s + of.resumed_s[gap.number] for gap in of.gaps if gap.number in of.resumed_s
        ]
        for of in result.partitions
    }
    return Run(
        title=f"Drill of {result.topic}",
        begin_s=result.begin_s,
        begin_unix_s=result.begin_unix_s,
        end_s=result.end_s,
        partitions=list(names.values()),
        gaps=result.gaps,
        stalls=result.stalls,
        acked=result.acked_per_s,
        resumed={name: moments for name, moments in resumed.items() if moments},
        marks=_marks(result),
        records=Records(result.total("sent"), result.total("acknowledged"), result.total("failed")),
        delivery=result.delivery,
        delivery_timeout_s=result.budget.delivery_timeout_s,
        settings=result.settings,
        notes=result.notes,
    )


def _marks(result: Result) -> list[Mark]:
    """Changes of leaders that were seen in one look are one mark."""
    moments: dict[float, list[LeaderChange]] = {}
    for change in result.leader_changes:
        moments.setdefault(change.at_s, []).append(change)
    return [Mark(at_s, changed(changes)) for at_s, changes in moments.items()]
