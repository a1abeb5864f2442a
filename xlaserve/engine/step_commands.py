"""A step's rows, readings and samples as the runner's commands. Which hidden row is whose is decided here."""

from collections.abc import Iterable

from xlaserve.core.reading import Pooling, Scoring
from xlaserve.core.step import ScheduledReading, ScheduledRow, SchedulerOutput
from xlaserve.runner.commands import Body, Pool, PromptLogprobs, RowTokens, Sample, SampleRow


class StepCommands:
    """Hidden rows are in the order of the step's tokens: of each row those that are read, then those that sample."""

    def __init__(self, scheduled: SchedulerOutput):
        self._scheduled = scheduled
        self._outputs: list[int] = []  # places among the step's tokens
        self._sampled: dict[int, int] = {}  # the first hidden row that samples, by request row
        self._read: dict[int, int] = {}  # the first hidden row of a reading, by request row
        positions = {reading.row: reading.positions for reading in scheduled.readings}
        end = 0
        for row in scheduled.rows:
            if positions and (read := positions.get(row.row)):
                self._read[row.row] = len(self._outputs)
                self._outputs += [end + position - row.start for position in read]
            end += row.num_tokens
            if row.samples:
                self._sampled[row.row] = len(self._outputs)
                self._outputs += range(end - 1, end + len(row.drafts))
                end += len(row.drafts)

    def body(self) -> Body:
        scheduled = self._scheduled
        return Body(
            rows=tuple(map(_tokens, scheduled.rows)),
            table_deltas=tuple(scheduled.table_deltas),
            outputs=tuple(self._outputs),
            weights_version=scheduled.weights_version,
        )

    def readings(self) -> list[PromptLogprobs | Pool]:
        """One command for each kind of reading that the step has, in the order of READING_KINDS; most have none."""
        commands: list[PromptLogprobs | Pool] = []
        if scorings := self._scheduled.readings_of(Scoring):
            commands.append(self._prompt_logprobs(scorings))
        if poolings := self._scheduled.readings_of(Pooling):
            commands.append(Pool(tuple((self._read[each.row], len(each.positions)) for each in poolings)))
        return commands

    def _prompt_logprobs(self, scorings: Iterable[ScheduledReading]) -> PromptLogprobs:
        hidden_rows, next_ids = [], []
        for each in scorings:
            first = self._read[each.row]
            hidden_rows += range(first, first + len(each.positions))
            next_ids += [each.request.prompt_ids[position + 1] for position in each.positions]
        return PromptLogprobs(tuple(hidden_rows), tuple(next_ids))

    def sample(self) -> Sample:
        samples, rows = self._scheduled.samples, []
        for each in samples:
            first, row = self._sampled[each.row], each.request.row
            rows.append(SampleRow(first, row, each.position))
            for place, draft in enumerate(each.drafts, 1):
                rows.append(SampleRow(first + place, row, each.position + place, draft))
        return Sample(tuple(rows), want_logprobs=any(each.request.params.logprobs is not None for each in samples))


def _tokens(row: ScheduledRow) -> RowTokens:
    if not row.drafts:
        return RowTokens(row.row, row.start, row.num_tokens, row.token_ids)
    assert row.token_ids is not None
    return RowTokens(row.row, row.start, row.num_tokens + len(row.drafts), row.token_ids + row.drafts)
