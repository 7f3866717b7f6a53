"""A result's counts by group, compared with the answers' groups or else with each other."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from app.results.themes import NO_GROUP, ROUNDING, GroupCount, ThemesResult

Groups = Mapping[str, Mapping[str, str]]
"""Column -> response id -> group; an empty one is NO_GROUP."""
Sizes = Mapping[str, Mapping[str, range]]
"""Column -> group -> how many analysed answers it may have."""


def group_sizes(result: ThemesResult, groups: Groups | None) -> Sizes:
    """How large the groups of `result` are; what its shares leave open where they are not given."""
    analysed = [entry.response_id for entry in result.assignments if entry.status != "non_answer"]
    if groups is not None:
        return {
            column: {
                group: range(size, size + 1)
                for group, size in Counter(
                    _label(of_row.get(response_id, "")) for response_id in analysed
                ).items()
            }
            for column, of_row in groups.items()
        }
    sizes: dict[str, dict[str, range]] = defaultdict(dict)
    for theme in result.themes:
        for column, counts in theme.by_group.items():
            for group, count in counts.items():
                before = sizes[column].get(group, range(len(analysed) + 1))
                sizes[column][group] = _both(before, _implied(count, len(analysed)))
    return sizes


def group_problems(result: ThemesResult, sizes: Sizes, groups: Groups | None) -> Iterator[str]:
    """What is wrong with the counts by group, one sentence each."""
    yield from _size_problems(result, sizes)
    for theme in result.themes:
        for column, counts in theme.by_group.items():
            total = sum(count.responses for count in counts.values())
            if total != theme.responses:
                yield f"theme {theme.id}: groups of {column!r} add up to {total}"
    if groups is None:
        return
    there = _counted(result, groups)
    for theme in result.themes:
        if theme.by_group.keys() != groups.keys():
            yield f"theme {theme.id} is counted by {', '.join(theme.by_group) or 'no group'}"
            continue
        for column, counts in theme.by_group.items():
            if counts.keys() != sizes[column].keys():
                yield f"theme {theme.id}: {column!r} has the groups {', '.join(counts)}"
                continue
            for group, count in counts.items():
                counted = there[theme.id, column, group], sizes[column][group][0]
                yield from (
                    f"theme {theme.id}, {column!r} {group!r}: {problem}"
                    for problem in _count_problems(count, *counted)
                )


def _size_problems(result: ThemesResult, sizes: Sizes) -> Iterator[str]:
    for column, of_column in sizes.items():
        for group, size in of_column.items():
            if not size:
                yield f"the shares of {group!r} in {column!r} do not agree"
        least = sum(size.start for size in of_column.values())
        most = sum(size.stop - 1 for size in of_column.values())
        if not least <= result.input.analysed <= most:
            yield f"the groups of {column!r} cannot be {result.input.analysed} answers together"


def _count_problems(count: GroupCount, responses: int, size: int) -> Iterator[str]:
    if count.responses != responses:
        yield f"states {count.responses} answers, there are {responses}"
    if abs(count.share - responses / size) > ROUNDING:
        yield f"states a share of {count.share}, it is {responses / size:.4f}"


def _counted(result: ThemesResult, groups: Groups) -> Counter[tuple[str, str, str]]:
    there: Counter[tuple[str, str, str]] = Counter()
    for entry in result.assignments:
        themes = [*entry.theme_ids, *([entry.subtheme_id] if entry.subtheme_id else [])]
        for column, of_row in groups.items():
            group = _label(of_row.get(entry.response_id, ""))
            there.update((theme, column, group) for theme in themes)
    return there


def _label(group: str) -> str:
    return group.strip() or NO_GROUP


def _implied(count: GroupCount, analysed: int) -> range:
    """The sizes with which the share of a group fits its count."""
    if not count.responses:
        return range(analysed + 1 if count.share <= _HALF_STEP else 0)
    least = math.ceil(count.responses / (count.share + _HALF_STEP))
    most = analysed
    if count.share > _HALF_STEP:
        most = min(analysed, math.floor(count.responses / (count.share - _HALF_STEP)))
    return range(max(least, count.responses), most + 1)


def _both(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


_HALF_STEP: Final = ROUNDING / 2
