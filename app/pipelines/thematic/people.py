"""How many people say what: each text, and each group of texts.

A long answer says several texts and is one person still, so a group has fewer people than its texts
have together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence


class People(list[int]):
    """How many people say each text.

    Args:
        each: by text.
        several: the texts of each answer that says more than one; none of them twice.
    """

    def __init__(self, each: Iterable[int], several: Iterable[Sequence[int]] = ()) -> None:
        super().__init__(each)
        self.several = list(several)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self) - sum(len(texts) - 1 for texts in self.several)

    def by_group(self, group_of: Sequence[int]) -> Counter[int]:
        """Group -> people who say at least one of its texts; `group_of` is by text."""
        size = Counter[int]()
        for group, times in zip(group_of, self, strict=True):
            size[group] += times
        for texts in self.several:
            for group, times in Counter(group_of[text] for text in texts).items():
                size[group] -= times - 1
        return size

    def only(self, texts: Sequence[int]) -> "People":
        """As if nothing but these texts were said; they are numbered anew, as they stand here."""
        number = {text: at for at, text in enumerate(texts)}
        several = [[number[text] for text in said if text in number] for said in self.several]
        return People((self[text] for text in texts), [said for said in several if len(said) > 1])


def as_people(people: Sequence[int]) -> People:
    """The same; where these are mere numbers, nobody says two of the texts."""
    return people if isinstance(people, People) else People(people)
