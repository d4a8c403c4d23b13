"""Ten little repositories, each with a planted bug and hidden tests that find it. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repair:
    """A module with one wrong line, what a user says about it, and tests that pass once it is right."""

    name: str
    complaint: str
    right: str
    """The module as it should be."""
    line: str
    """A part of one of its lines."""
    bug: str
    """Wrong text in its place."""
    tests: str

    @property
    def source(self) -> str:
        """The module with its bug."""
        return self.right.replace(self.line, self.bug, 1)


REPAIRS = (
    Repair(
        "averages",
        "mean([1, 2]) returns 1, and mean([]) should be 0.",
        "def mean(values):\n    if not values:\n        return 0\n    return sum(values) / len(values)\n",
        " / len",
        " // len",
        "from averages import mean\n\ndef test_half():\n    assert mean([1, 2]) == 1.5\n\ndef test_none():\n"
        "    assert mean([]) == 0\n\ndef test_whole():\n    assert mean([2, 4]) == 3\n",
    ),
    Repair(
        "pages",
        "page(items, 1, 10) skips the first ten items: pages count from 1.",
        "def page(items, number, size):\n    start = (number - 1) * size\n    return items[start : start + size]\n",
        "(number - 1) * size",
        "number * size",
        "from pages import page\n\ndef test_first():\n    assert page(list(range(25)), 1, 10) == list(range(10))\n\n"
        "def test_last():\n    assert page(list(range(25)), 3, 10) == [20, 21, 22, 23, 24]\n",
    ),
    Repair(
        "intervals",
        "Intervals that touch, such as (1, 2) and (2, 3), stay apart in merge().",
        "def merge(intervals):\n    merged = []\n    for start, end in sorted(intervals):\n"
        "        if merged and start <= merged[-1][1]:\n"
        "            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))\n"
        "        else:\n            merged.append((start, end))\n    return merged\n",
        "start <= merged",
        "start < merged",
        "from intervals import merge\n\ndef test_touching():\n    assert merge([(1, 2), (2, 3)]) == [(1, 3)]\n\n"
        "def test_apart():\n    assert merge([(4, 5), (1, 2)]) == [(1, 2), (4, 5)]\n\n"
        "def test_inside():\n    assert merge([(1, 9), (2, 3)]) == [(1, 9)]\n",
    ),
    Repair(
        "counter",
        "Every word is counted once at most by count_words().",
        "def count_words(text):\n    counts = {}\n    for word in text.lower().split():\n"
        "        counts[word] = counts.get(word, 0) + 1\n    return counts\n",
        "counts.get(word, 0) + 1",
        "1",
        'from counter import count_words\n\ndef test_twice():\n    assert count_words("a b A") == {"a": 2, "b": 1}\n\n'
        'def test_nothing():\n    assert count_words("") == {}\n',
    ),
    Repair(
        "history",
        "Two History objects share their entries.",
        "class History:\n    def __init__(self, entries=()):\n        self.entries = list(entries)\n\n"
        "    def add(self, entry):\n        self.entries.append(entry)\n        return self\n",
        "entries=()):\n        self.entries = list(entries)",
        "entries=[]):\n        self.entries = entries",
        "from history import History\n\ndef test_apart():\n    first, second = History(), History()\n    first.add(1)\n"
        "    assert (first.entries, second.entries) == ([1], [])\n\ndef test_argument():\n    argument = [1]\n"
        "    History(argument).add(2)\n    assert argument == [1]\n",
    ),
    Repair(
        "leap",
        "is_leap(1900) is true, and is_leap(2000) must stay true.",
        "def is_leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
        " and (year % 100 != 0 or year % 400 == 0)",
        "",
        "from leap import is_leap\n\ndef test_century():\n    assert not is_leap(1900)\n\ndef test_fourth():\n"
        "    assert is_leap(2000)\n\ndef test_others():\n    assert is_leap(2024) and not is_leap(2023)\n",
    ),
    Repair(
        "search",
        "find() does not find the last of the sorted values.",
        "def find(values, wanted):\n    low, high = 0, len(values)\n    while low < high:\n"
        "        middle = (low + high) // 2\n        if values[middle] < wanted:\n            low = middle + 1\n"
        "        else:\n            high = middle\n"
        "    return low if low < len(values) and values[low] == wanted else -1\n",
        "low, high = 0, len(values)\n",
        "low, high = 0, len(values) - 2\n",
        "from search import find\n\ndef test_last():\n    assert find([1, 3, 5], 5) == 2\n\ndef test_first():\n"
        "    assert find([1, 3, 5], 1) == 0\n\ndef test_missing():\n    assert find([1, 3, 5], 4) == -1\n\n"
        "def test_empty():\n    assert find([], 4) == -1\n",
    ),
    Repair(
        "money",
        "share(100, 3) loses a cent: the parts of share() must add up to the amount.",
        "def share(cents, people):\n    each, rest = divmod(cents, people)\n"
        "    return [each + 1] * rest + [each] * (people - rest)\n",
        "[each + 1] * rest + [each] * (people - rest)",
        "[each] * people",
        "from money import share\n\ndef test_rest():\n    assert share(100, 3) == [34, 33, 33]\n\ndef test_even():\n"
        "    assert share(90, 3) == [30, 30, 30]\n\ndef test_two():\n    assert sum(share(101, 3)) == 101\n",
    ),
    Repair(
        "slugs",
        'slug("Hello,  World!") should be "hello-world", without a dash at the ends or two in a row.',
        'import re\n\n\ndef slug(title):\n    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")\n',
        '[^a-z0-9]+", "-", title.lower()).strip("-")',
        '[^a-z0-9]", "-", title.lower())',
        'from slugs import slug\n\ndef test_title():\n    assert slug("Hello,  World!") == "hello-world"\n\n'
        'def test_plain():\n    assert slug("a1 b2") == "a1-b2"\n',
    ),
    Repair(
        "queue_of_jobs",
        "Jobs with the same priority must come out in the order in which they were added.",
        "import heapq\nimport itertools\n\n\nclass Jobs:\n    def __init__(self):\n"
        "        self.heap, self.numbers = [], itertools.count()\n\n    def add(self, priority, job):\n"
        "        heapq.heappush(self.heap, (priority, next(self.numbers), job))\n\n    def take(self):\n"
        "        return heapq.heappop(self.heap)[2]\n",
        "next(self.numbers), job",
        "-next(self.numbers), job",
        "from queue_of_jobs import Jobs\n\ndef take_all(entries):\n    jobs = Jobs()\n"
        "    for priority, job in entries:\n        jobs.add(priority, job)\n"
        "    return [jobs.take() for _ in entries]\n\n"
        'def test_same():\n    assert take_all([(1, "a"), (1, "b"), (1, "c")]) == ["a", "b", "c"]\n\n'
        'def test_priority():\n    assert take_all([(2, "a"), (1, "b")]) == ["b", "a"]\n',
    ),
)
"""The last two are held out."""
