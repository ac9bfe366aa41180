"""An extractive summariser without a network, a model or a random number: TextRank over sentences and over words.

A text becomes a graph. Sentences that share words, or words of one family (*govern*, *government*), are linked by how alike
they are; PageRank then tells which sentence the others point at. A second graph, of words that stand near each other, gives
the key words. The same text always gives the same summary, bit for bit.

A rank that hangs on one other sentence is worth little. So the sentences are ranked again with each of them left out in turn
(the jackknife): the ranks are averaged, and a chosen sentence's *support* tells by how many of those rankings it is chosen too.

After R. Mihalcea and P. Tarau, *TextRank: Bringing Order into Texts* (2004). Two things are added: word weights that fall with
the number of sentences a word is in, and words compared by their character trigrams. Together they make it work
for languages that no stop word list here knows.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from letitloop.cli.demo.words import content_words, kinship

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Summary", "jackknife", "keywords", "pagerank", "sentences", "similarity", "summarise"]

DAMPING = 0.85
TOLERANCE = 1e-9
MAX_ROUNDS = 200
WINDOW = 4  # words that stand within this distance are linked
REDUNDANCY = 0.7  # how much a sentence loses for being like one already chosen
JACKKNIFE = 48  # how many rankings with one sentence left out, at most: its time grows with the cube of the length
FEWEST_WORDS = 3  # a sentence of fewer content words is chosen only where there is no other: "SECTION 2." says nothing

# A sentence ends at a mark, with its closing quotes, before white space; in Chinese and Japanese at the mark itself.
_END = re.compile("(?:[.!?…]+[\"'’”»)\\]]*(?=\\s|$))|(?:[。！？]+[」』”]*)")
_ABBREVIATIONS = frozenset(
    (
        "mr mrs ms dr prof st sr jr vs etc cf al fig figs no nos vol vols pp p ch sec art arts gen col lt capt sgt rev hon "
        "gov sen rep e.g i.e a.d b.c a.m p.m u.s u.k u.n bzw z.b d.h u.a usw nr hr fr ca vgl bd abs m mme mlle env ex p.ex "
        "sig dott ing ud uds sra"
    ).split()
)


@dataclass(frozen=True)
class Summary:
    """What :func:`summarise` says about a text.

    Args:
        title: the text's title, as it was given.
        sentences: the chosen sentences, in the order of the text.
        ranks: the rank of each chosen sentence; over all sentences of the text the ranks add up to 1.
        support: for each chosen sentence, by what share of the rankings with one sentence left out it is chosen too, 0 to 1.
        keywords: the highest ranking words, most important first.
        total: how many sentences the text has.
    """

    title: str
    sentences: tuple[str, ...]
    ranks: tuple[float, ...]
    support: tuple[float, ...]
    keywords: tuple[str, ...]
    total: int


def sentences(text: str) -> list[str]:
    """Split a text into sentences; white space inside a sentence becomes one space.

    Abbreviations, initials, ordinals (``3.``) and a mark followed by a small letter do not end a sentence; a blank line does.

    >>> sentences("Mr. J. Smith paid 3.50 dollars. Did he? He did.")
    ['Mr. J. Smith paid 3.50 dollars.', 'Did he?', 'He did.']
    """
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.split())
        start = 0
        for mark in _END.finditer(flat):
            if _ends_sentence(flat, start, mark):
                found.append(flat[start : mark.end()].strip())
                start = mark.end()
        found.append(flat[start:].strip())
    return [sentence for sentence in found if any(character.isalnum() for character in sentence)]


def _ends_sentence(flat: str, start: int, mark: re.Match[str]) -> bool:
    if mark.group()[0] != ".":
        return mark.group()[0] in "。！？" or not flat[mark.end() :].lstrip()[:1].islower()
    after = flat[mark.end() :].lstrip()[:1]
    if after.islower() or after.isdigit():  # "SECTION. 2. The House ..." is one sentence
        return False
    word = flat[start : mark.start()].rpartition(" ")[2].lstrip("(\"'“‘«[").casefold()
    if word in _ABBREVIATIONS or word.isdigit():
        return not after
    # an initial: "J. Smith"; but in "Article I." and "so do I." the letter is a word, and ends a sentence often enough
    return not (len(word) == 1 and word.isalpha() and word not in "aioy")


def pagerank(weights: Sequence[dict[int, float]], *, damping: float = DAMPING) -> list[float]:
    """Rank the nodes of a weighted graph by power iteration.

    Args:
        weights: for each node, its neighbours and the weight of the link to each; a node without links spreads its rank evenly.
        damping: the share of a node's rank that follows its links, 0 to 1.

    Returns:
        the rank of each node; they add up to 1.

    >>> [round(rank, 3) for rank in pagerank([{1: 1.0}, {0: 1.0, 2: 1.0}, {1: 1.0}])]
    [0.257, 0.486, 0.257]
    """
    count = len(weights)
    if not count:
        return []
    out = [math.fsum(links.values()) for links in weights]
    links = [[(target, weight / out[node]) for target, weight in sorted(weights[node].items())] for node in range(count)]
    ranks = [1.0 / count] * count
    for _ in range(MAX_ROUNDS):
        loose = math.fsum(ranks[node] for node in range(count) if not links[node])
        fresh = [(1.0 - damping + damping * loose) / count] * count
        for node, targets in enumerate(links):
            for target, share in targets:
                fresh[target] += damping * share * ranks[node]
        moved = math.fsum(abs(a - b) for a, b in zip(fresh, ranks, strict=True))
        ranks = fresh
        if moved < TOLERANCE:
            break
    return ranks


def similarity(bags: Sequence[Sequence[str]]) -> list[dict[int, float]]:
    """Link sentences by how alike their words are: a cosine in which words of one family count in part.

    Args:
        bags: the content words of each sentence.

    Returns:
        for each sentence, the sentences it is like, with a weight above 0 and at most about 1.
    """
    count = len(bags)
    spread: dict[str, int] = {}
    for bag in bags:
        for word in set(bag):
            spread[word] = spread.get(word, 0) + 1
    weight = {word: math.log(1 + count / seen) for word, seen in spread.items()}
    families = kinship(sorted(spread))
    vectors: list[dict[str, float]] = []
    for bag in bags:
        vector: dict[str, float] = {}
        for word in bag:
            vector[word] = vector.get(word, 0.0) + weight[word]
        vectors.append(vector)
    wide: list[dict[str, float]] = []
    for vector in vectors:
        widened = dict(vector)
        for word, value in vector.items():
            for kin, closeness in families.get(word, ()):
                widened[kin] = widened.get(kin, 0.0) + value * closeness
        wide.append(widened)
    norms = [math.sqrt(math.fsum(value * wide[i][word] for word, value in vector.items())) for i, vector in enumerate(vectors)]
    links: list[dict[int, float]] = [{} for _ in bags]
    for i, vector in enumerate(vectors):
        for j in range(i):
            other = wide[j]
            dot = math.fsum(value * other[word] for word, value in vector.items() if word in other)
            if dot > 0.0:
                links[i][j] = links[j][i] = dot / (norms[i] * norms[j])
    return links


def keywords(words: Sequence[str], count: int) -> tuple[str, ...]:
    """Rank the words of a text by the company they keep.

    Args:
        words: the content words in the order of the text.
        count: how many to return, at most.

    Returns:
        the highest ranking words, of each family the first.
    """
    names = sorted(set(words))
    number = {word: i for i, word in enumerate(names)}
    links: list[dict[int, float]] = [{} for _ in names]
    for i, word in enumerate(words):
        for near in words[max(0, i - WINDOW) : i]:
            a, b = number[word], number[near]
            if a != b:
                links[a][b] = links[b][a] = links[a].get(b, 0.0) + 1.0
    ranks = pagerank(links)
    families = {word: {kin for kin, _ in kins} for word, kins in kinship(names).items()}
    chosen: list[str] = []
    for word in sorted(names, key=lambda name: (-ranks[number[name]], name)):
        if not any(word in families.get(earlier, ()) for earlier in chosen):
            chosen.append(word)
        if len(chosen) == count:
            break
    return tuple(chosen)


def summarise(text: str, *, title: str = "", count: int | None = None) -> Summary:
    """Choose the sentences of a text that say most about it.

    Args:
        text: plain text of any language that marks its sentences.
        title: handed on to the summary.
        count: how many sentences to choose; left out, one for every ten, at least one and at most four.

    Returns:
        the chosen sentences in the order of the text, with key words. A text of one sentence is its own summary.

    >>> text = "The river floods the valley. Every spring it floods fields in the valley. Farmers leave the fields. Tea is hot."
    >>> summarise(text, count=1).sentences
    ('Every spring it floods fields in the valley.',)
    """
    every = sentences(text)
    bags = content_words(every)
    wanted = min(len(every), count if count is not None else max(1, min(4, round(len(every) / 10))))
    links = similarity(bags)

    def choose(ranks: Sequence[float]) -> list[int]:
        return _choose(ranks, links, bags, wanted)

    ranks, support = jackknife(links, choose)
    chosen = sorted(choose(ranks))
    return Summary(
        title=title,
        sentences=tuple(every[i] for i in chosen),
        ranks=tuple(ranks[i] for i in chosen),
        support=tuple(support[i] for i in chosen),
        keywords=keywords([word for bag in bags for word in bag], 6),
        total=len(every),
    )


def jackknife(
    links: Sequence[dict[int, float]], choose: Callable[[Sequence[float]], Sequence[int]]
) -> tuple[list[float], list[float]]:
    """Rank the nodes of a graph with each of them left out in turn.

    Args:
        links: for each node, its neighbours and the weight of the link to each.
        choose: given a rank for each node, names the nodes that are chosen by it; a node that is left out has rank 0.

    Returns:
        the mean rank of each node (they add up to 1), and the share of the rankings it was in by which it was chosen.
    """
    count = len(links)
    if count < 3:
        return pagerank(links), [1.0] * count
    samples = min(count, JACKKNIFE)
    totals, led, rounds = [0.0] * count, [0] * count, [0] * count
    for out in sorted({round(i * (count - 1) / (samples - 1)) for i in range(samples)}):
        kept = [node for node in range(count) if node != out]
        place = {node: i for i, node in enumerate(kept)}
        ranks = pagerank([{place[to]: weight for to, weight in links[node].items() if to != out} for node in kept])
        first = choose([0.0 if node == out else ranks[place[node]] for node in range(count)])
        for i, node in enumerate(kept):
            totals[node] += ranks[i]
            rounds[node] += 1
            led[node] += node in first
    means = [total / times for total, times in zip(totals, rounds, strict=True)]
    whole = math.fsum(means)
    return [mean / whole for mean in means], [a / b for a, b in zip(led, rounds, strict=True)]


def _choose(ranks: Sequence[float], links: Sequence[dict[int, float]], bags: Sequence[Sequence[str]], wanted: int) -> list[int]:
    """Take the best sentence again and again; each one taken lowers those that say the same."""
    worth = list(ranks)
    left = set(range(len(worth)))
    chosen: list[int] = []
    while len(chosen) < wanted:
        best = max(left, key=lambda i: (len(bags[i]) >= FEWEST_WORDS, worth[i], -i))
        left.remove(best)
        chosen.append(best)
        for other, alike in links[best].items():
            worth[other] *= 1.0 - REDUNDANCY * min(1.0, alike)
    return chosen
