"""Words: where they begin and end, which of them carry no meaning, and which belong to one family."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["content_words", "kinship", "tokens"]

# Words of at least this trigram likeness are of one family.
FAMILY = 0.5

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_WITHOUT_SPACES = re.compile("[぀-ヿ㐀-䶿一-鿿豈-﫿]+")  # Japanese kana, Han

_STOP = {
    "en": "a about above after again against all also although am among an and any are as at be because been before being below between "
    "both but by can cannot could did do does doing down during each either even ever every few for from further had has have having he "
    "her here hers herself him himself his how however i if in into is it its itself just least less let like made make many may me "
    "might mine more most much must my myself neither no nor not nothing now of off on once one only or other our ours ourselves out "
    "over own per rather same shall she should since so some still such than that the thee their theirs them themselves then there "
    "thereof therein thereby these they this those thou though through thus thy to too under until up upon us very was we well were "
    "what when where whether which while who whole whom whose why will with within without would yet you your yours yourself",
    "de": "aber alle allem allen aller alles als also am an andere anderen auch auf aus bei beim bin bis bist da damit dann das dass daß "
    "dein dem den denn der des dich die dies diese dieser dieses dir doch dort du durch ein eine einem einen einer eines er es etwas "
    "euch für gegen gewesen hab habe haben hat hatte hatten hier hin ich ihm ihn ihr ihre im in ist ja jede jeder jedes jener jetzt "
    "kann kein keine können man mehr mein mich mir mit muss muß nach nicht nichts noch nun nur ob oder ohne schon sehr sein seine "
    "seinem seinen seiner sich sie sind so solche soll sondern um und uns unter viel vom von vor war waren was weil wenn wer werden "
    "wie wieder will wir wird wo wurde wurden zu zum zur zwar zwischen über",
    "fr": "à afin ai ainsi alors au aucun aussi autre autres aux avait avec avez avoir avons c ce cela celle celui ces cet cette ceux "
    "chaque ci comme d dans de depuis des deux donc dont du elle elles en encore entre es est et étaient était été être eu eux fait "
    "fut il ils j je l la là le les leur leurs lui m ma mais me même mes moi moins mon n ne ni nos notre nous on ont ou où par pas "
    "plus pour qu quand que quel quelle quelque qui s sa sans se ses si soit son sont sous sur t ta te tes toi ton tous tout toute "
    "toutes très tu un une vos votre vous y",
    "es": "a al algo ante antes aquel aquella así aún aunque cada como con contra cual cuando de del desde donde dos e el ella ellas ellos en "
    "entre era eran es esa ese eso esta está están este esto estos fue fueron ha había han hasta hay la las le les lo los más me mi "
    "mientras muy nada ni no nos nosotros o os otra otro para pero poco por porque pues que quien se sea según ser si sí sido sin "
    "sobre son su sus también tan tanto te tiene toda todas todo todos tu un una uno unos y ya yo",
    "it": "a ad al alla alle agli ai anche ancora aveva avevano c che chi ci col come con contro cui d da dal dalla degli dei del della delle "
    "dello di dopo dove e è ed egli era erano essere fra fu gli ha hanno i il in io l la le lei li lo loro lui ma me mi mia mio molto "
    "ne nè né nei nel nella nelle noi non nostro o ogni per perché però più poi prima qual quale quando quanto quella quello questa "
    "questo qui s sé se senza si sia siamo sono sopra sta stato su sua sue sugli sui sul sulla suo tra tutti tutto un una uno v vi voi",
}
_STOP_SETS = {language: frozenset(words.split()) for language, words in _STOP.items()}


def tokens(sentence: str) -> list[str]:
    """Split a sentence into words, folded to one case; where a script writes no spaces, pairs of characters stand for words.

    >>> tokens("The People's Choice, 1787")
    ['the', "people's", 'choice', '1787']
    """
    found: list[str] = []
    for word in _WORD.findall(sentence.casefold().replace("’", "'")):
        rest = 0
        for run in _WITHOUT_SPACES.finditer(word):
            if run.start() > rest:
                found.append(word[rest : run.start()])
            characters = run.group()
            found += [characters[i : i + 2] for i in range(max(1, len(characters) - 1))]
            rest = run.end()
        if rest < len(word):
            found.append(word[rest:])
    return found


def content_words(sentences: Sequence[str]) -> list[list[str]]:
    """Give the words of each sentence that carry meaning.

    The stop words are those of the language whose list covers most of the text; where none covers a tenth of it, words of one or two letters
    are left out and the weights of :func:`letitloop.cli.demo.textrank.similarity` do the rest.
    """
    bags = [tokens(sentence) for sentence in sentences]
    total = sum(map(len, bags))
    covered = {language: sum(word in stop for bag in bags for word in bag) for language, stop in _STOP_SETS.items()}
    best = max(covered, key=lambda language: covered[language])
    stop = _STOP_SETS[best] if covered[best] * 10 >= total else frozenset[str]()
    return [[word for word in bag if _carries_meaning(word, stop)] for bag in bags]


def _carries_meaning(word: str, stop: frozenset[str]) -> bool:
    if _WITHOUT_SPACES.match(word):
        return True
    return len(word) > 2 and word not in stop and not word.isdigit()


def kinship(words: Sequence[str]) -> dict[str, tuple[tuple[str, float], ...]]:
    """Find the words of one family, by the share of their character trigrams (Dice) that they have in common.

    Args:
        words: different words, sorted.

    Returns:
        for a word that has kin: each of its kin with a likeness from 0.5 to 1.

    >>> kinship(["govern", "government", "people"])["govern"]
    (('government', 0.75),)
    """
    grams = [_trigrams(word) for word in words]
    kin: dict[str, list[tuple[str, float]]] = {}
    for i, left in enumerate(grams):
        for j in range(i):
            right = grams[j]
            if not left or not right:
                continue
            likeness = 2.0 * len(left & right) / (len(left) + len(right))
            if likeness >= FAMILY:
                kin.setdefault(words[i], []).append((words[j], likeness))
                kin.setdefault(words[j], []).append((words[i], likeness))
    return {word: tuple(sorted(relatives)) for word, relatives in kin.items()}


def _trigrams(word: str) -> frozenset[str]:
    # short words that look alike are seldom of one family: "war" and "was"
    padded = f"^^{word}"
    return frozenset(padded[i : i + 3] for i in range(len(padded) - 2)) if len(word) > 3 else frozenset()
