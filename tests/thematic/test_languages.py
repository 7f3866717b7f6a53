# ruff: noqa: RUF001 - other scripts have letters that look like Latin ones
import pytest
from thematic.surveys import banking_rows, nhs_rows

from app.pipelines.thematic.facts import foreign_share
from app.pipelines.thematic.languages import UNDETERMINED, language


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("en", "The nurses were very friendly and patient with us"),
        ("de", "Die Schwestern waren sehr freundlich und geduldig"),
        ("fr", "Le personnel est très gentil, mais il faut attendre"),
        ("es", "El personal es muy amable y la comida está bien"),
        ("it", "Il personale è molto gentile, ma si aspetta troppo"),
        ("pt", "O pessoal é muito simpático e não há nada a melhorar"),
        ("nl", "Het personeel is erg aardig en wij waren tevreden"),
        ("da", "Personalet er meget venligt, og jeg har det godt"),
        ("sv", "Personalen är mycket vänlig och jag mår bra"),
        ("pl", "Personel jest bardzo miły i nie ma nic do poprawy"),
        ("tr", "Personel çok iyi ama bekleme süresi daha kısa olsun"),
        ("el", "Το προσωπικό είναι πολύ ευγενικό"),
        ("Cyrl", "Персонал очень вежливый"),
        ("Arab", "الموظفون لطفاء جدا"),
        ("he", "הצוות אדיב מאוד"),
        ("zh", "工作人员非常友好"),
        ("ja", "スタッフはとても親切でした"),
        ("ko", "직원들이 매우 친절했습니다"),
        ("th", "เจ้าหน้าที่ใจดีมาก"),
        ("Deva", "कर्मचारी बहुत अच्छे हैं"),
    ],
)
def test_languages_are_told_apart(code: str, text: str) -> None:
    assert language(text) == code


@pytest.mark.parametrize("text", ["", "Great staff", "Parking!", "10/10", "a", "\U0001f600"])
def test_too_little_text_is_not_guessed_at(text: str) -> None:
    assert language(text) == UNDETERMINED


@pytest.mark.parametrize(
    "text",
    ["façade et prêt me", "prêt de garçon ne", "lui de bête commerçant", "façade de tête il"],
)
def test_evidence_that_just_reaches_the_threshold_does(text: str) -> None:
    assert language(text) == "fr"


def test_english_surveys_are_english() -> None:
    texts = [row["text"] for row in [*nhs_rows(), *banking_rows()]]
    told = [code for code in map(language, texts) if code != UNDETERMINED]
    assert len(told) > 0.8 * len(texts)
    assert sum(code != "en" for code in told) < 0.002 * len(told)


def test_the_foreign_share_is_of_the_answers_that_tell() -> None:
    languages = {"en": 30, "de": 10, "und": 100}
    assert foreign_share(languages, "minilm-int8") == 0.25
    assert foreign_share({"und": 5}, "minilm-int8") == 0.0
    assert foreign_share(languages, "openai") == 0.0
