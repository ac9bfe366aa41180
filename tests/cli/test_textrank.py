"""The summariser of the demo: a real algorithm with known answers."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from letitloop.cli.demo.documents import read, shipped, split, text_of
from letitloop.cli.demo.textrank import jackknife, keywords, pagerank, sentences, similarity, summarise
from letitloop.cli.demo.words import content_words, kinship, tokens

STORY = (
    "The harbour town lives from fishing. Every morning the fishing boats leave the harbour before dawn. "
    "A storm destroyed half of the fishing boats in the harbour last winter. The baker sells bread. "
    "The town paid for new boats, and the harbour was full of fishing boats again. My uncle likes tea."
)


def test_pagerank_of_a_chain_is_the_solution_of_its_equations():
    # b = 0.15/3 + 0.85 * 2a and a = 0.15/3 + 0.85 * b/2, so b = 0.135 / (1 - 0.7225)
    ends, middle = (1 - 0.486486486486) / 2, 0.135 / (1 - 0.7225)
    assert pagerank([{1: 1.0}, {0: 1.0, 2: 1.0}, {1: 1.0}]) == pytest.approx([ends, middle, ends], abs=1e-6)


@pytest.mark.parametrize("leaves", [2, 5, 40])
def test_pagerank_of_a_star_is_the_solution_of_its_equations(leaves):
    count = leaves + 1
    ranks = pagerank([dict.fromkeys(range(1, count), 1.0), *({0: 1.0} for _ in range(leaves))])
    hub = 0.15 * (1 + 0.85 * leaves) / (count * (1 - 0.85**2))
    assert ranks[0] == pytest.approx(hub, abs=1e-6)
    assert ranks[1:] == pytest.approx([(1 - hub) / leaves] * leaves, abs=1e-6)


def test_pagerank_follows_weights_and_keeps_the_rank_of_loose_nodes():
    ranks = pagerank([{1: 3.0, 2: 1.0}, {0: 3.0}, {0: 1.0}, {}])
    assert ranks[0] > ranks[1] > ranks[2] > ranks[3] > 0
    assert math.fsum(ranks) == pytest.approx(1.0)


def test_pagerank_of_nothing_and_of_one():
    assert pagerank([]) == []
    assert pagerank([{}]) == pytest.approx([1.0])


def test_likeness_is_symmetric_and_one_for_the_same_words():
    links = similarity([["harbour", "boats"], ["harbour", "boats"], ["tea", "bread"]])
    assert links[0][1] == links[1][0] == pytest.approx(1.0)
    assert links[2] == {}


def test_words_of_one_family_link_sentences_that_share_no_word():
    assert similarity([["govern", "nation"], ["government", "people"]])[0][1] > 0
    assert similarity([["govern", "nation"], ["weather", "people"]])[0] == {}


def test_kinship_ignores_short_words_and_is_mutual():
    assert kinship(["was", "war"]) == {}
    kin = kinship(["nation", "national", "tea"])
    assert kin["nation"][0][0] == "national"
    assert kin["national"][0][0] == "nation"
    assert "tea" not in kin


def test_jackknife_averages_to_one_and_tells_who_leads():
    links = [{1: 1.0, 2: 1.0, 3: 1.0}, {0: 1.0}, {0: 1.0}, {0: 1.0}]
    ranks, support = jackknife(links, lambda ranks: [max(range(4), key=lambda i: ranks[i])])
    assert math.fsum(ranks) == pytest.approx(1.0)
    assert support[0] == 1.0
    assert ranks[0] > ranks[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four…", ["One.", "Two!", "Three?", "Four…"]),
        ("Mr. J. Smith paid 3.50 dollars, i.e. a lot. He left.", ["Mr. J. Smith paid 3.50 dollars, i.e. a lot.", "He left."]),
        ('He said "Stop!" and went. "Why?" She stayed.', ['He said "Stop!" and went.', '"Why?"', "She stayed."]),
        ("SECTION. 2. The House shall meet. It meets.", ["SECTION. 2. The House shall meet.", "It meets."]),
        (
            "A line\nbroken in two.\n\nAnother paragraph without a mark",
            ["A line broken in two.", "Another paragraph without a mark"],
        ),
        ("これは文です。次の文です。", ["これは文です。", "次の文です。"]),
        ("Er kam z.B. am 3. Mai. Dann ging er.", ["Er kam z.B. am 3. Mai.", "Dann ging er."]),
        ("... --- !!!", []),
        ("", []),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_tokens_fold_case_and_pair_characters_where_there_are_no_spaces():
    assert tokens("The PEOPLE’s Straße") == ["the", "people's", "strasse"]
    assert tokens("東京都 2024") == ["東京", "京都", "2024"]


def test_the_summary_is_about_what_the_text_is_about():
    summary = summarise(STORY, title="Harbour", count=2)
    assert summary.total == 6
    assert all("boats" in sentence for sentence in summary.sentences)
    assert list(summary.sentences) == [s for s in sentences(STORY) if s in summary.sentences]  # in the order of the text
    assert "boats" in summary.keywords[:3]
    assert summary.title == "Harbour"
    assert all(0 < rank < 1 for rank in summary.ranks)
    assert all(0 <= share <= 1 for share in summary.support)


def test_the_summary_follows_the_text_and_is_no_canned_string():
    changed = STORY.replace("boats", "trains").replace("fishing", "mining").replace("harbour", "station")
    assert summarise(changed, count=2).sentences != summarise(STORY, count=2).sentences
    assert all("trains" in sentence for sentence in summarise(changed, count=2).sentences)


def test_saying_it_twice_does_not_get_it_chosen_twice():
    chosen = summarise(f"{STORY} {sentences(STORY)[2]}", count=2).sentences
    assert len(set(chosen)) == 2


def test_one_sentence_is_its_own_summary():
    summary = summarise("There is only this.")
    assert summary.sentences == ("There is only this.",)
    assert summary.total == 1


def test_a_text_without_content_words_still_has_a_summary():
    assert summarise("To be or not to be. It is what it is.").total == 2


def test_a_text_without_words_has_an_empty_summary():
    assert summarise("...").sentences == ()


GERMAN = (
    "Der Hafen lebt vom Fischfang. Jeden Morgen verlassen die Fischer mit ihren Booten den Hafen. Ein Sturm zerstörte die "
    "Boote der Fischer im Hafen. Mein Onkel trinkt Tee. Die Fischer kauften neue Boote für den Hafen."
)
FRENCH = (
    "Le port vit de la pêche. Chaque matin les bateaux de pêche quittent le port. Une tempête a détruit les bateaux dans le "
    "port. Mon oncle boit du thé. La ville a payé de nouveaux bateaux de pêche pour le port."
)
RUSSIAN = (
    "Порт живёт рыбной ловлей. Каждое утро рыбацкие лодки покидают порт. Буря разбила рыбацкие лодки в порту. "
    "Дядя пьёт чай. Город купил новые рыбацкие лодки."
)
JAPANESE = "港の船が出る。嵐が港の船を壊した。町は港の船を買った。おじは茶を飲む。"


@pytest.mark.parametrize(("text", "word"), [(GERMAN, "fischer"), (FRENCH, "bateaux"), (RUSSIAN, "лодки"), (JAPANESE, "港の")])
def test_other_languages(text, word):
    summary = summarise(text, count=1)
    assert word in summary.keywords
    assert word in summary.sentences[0].casefold()


def test_stop_words_are_those_of_the_texts_language():
    assert content_words(["Die Regierung der Länder ist nicht die Regierung des Bundes"]) == [
        ["regierung", "länder", "regierung", "bundes"]
    ]


def test_keywords_take_one_of_each_family():
    assert len({"nation", "nations"} & set(keywords(["nation", "war", "nations", "peace", "nation", "nations"], 4))) == 1


def test_the_same_bits_in_every_process_whatever_the_hash_seed():
    code = "from letitloop.cli.demo.textrank import summarise; import sys; print(repr(summarise(sys.argv[1])))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code, STORY], env={**_environment(), "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(seen) == 1
    assert repr(summarise(STORY)).encode() == seen.pop().strip()


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), "PYTHONIOENCODING": "utf-8"}


def test_the_shipped_texts_give_summaries_of_their_own_words():
    for path in shipped():
        for section in split(text_of(read(str(path)), path.name)):
            summary = summarise(section.text, title=section.title)
            flat = " ".join(section.text.split())
            assert summary.sentences
            assert all(sentence in flat for sentence in summary.sentences)
