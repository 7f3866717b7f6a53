"""Which language an answer is in: by its script, and for Latin script by its function words.

Function words (articles, pronouns, prepositions, auxiliaries) are the most frequent words of every
language and hardly depend on what is talked about. Those below were taken from the closed word
classes in the languages' grammars; a word of several languages counts for each of them. Short
answers often hold none ("Great staff"): they are undetermined rather than guessed.
"""
# ruff: noqa: RUF001 - Turkish has a letter that looks like another one

import re
import unicodedata
from collections import Counter
from types import MappingProxyType
from typing import Final

ENGLISH: Final = "en"
UNDETERMINED: Final = "und"

_WORDS: Final = MappingProxyType(
    {
        "en": """a about all also am an and are as at be because been but by can could did do does
            for from get had has have he her here him his how i if in into is it its just me more
            my no not of off on one or our out she should so some than that the their them then
            there they this to too up us very was we were what when where which who why will with
            would you your don't didn't isn't wasn't it's i'm can't couldn't""",
        "de": """aber alle als am an auch auf aus bei bin bis das dass dem den der des die dies
            diese dir du durch ein eine einem einen einer eines er es für gibt habe haben hat
            hatte ich ihm ihn ihr im in ins ist ja kann kein keine man mehr mein meine meinem
            meinen mich mir mit nach nicht noch nur oder ob sehr sein sich sie sind so um und
            uns unter vom von vor wann war waren was wenn wer werden wie wir wird wo zu zum zur
            über""",
        "fr": """à au aux avec avoir ce cela ces cette c'est dans de des du elle elles en est et
            était être fait il ils j'ai je l' la le les leur leurs lui ma mais me mes moi mon même
            ne nos notre nous on ont ou où par pas plus pour qu'il que qui sa sans se ses si son
            sont sur ta te tes toi ton tous tout très trop tu un une vos votre vous""",
        "es": """a al algo como con cuando de del donde el ella ellos en era es esta este está están
            estaba fue ha han hay la las le les lo los me mi mis muy más mucho ni no nos o para
            pero por porque que qué se ser si sin sobre son su sus también te tengo tiene todo todos
            tu un una y ya yo""",
        "it": """a ai al alla alle anche che chi ci come con cosa da dal dalla degli dei del della
            delle di dove e è era gli ha hanno ho i il in io la le lei lo loro lui ma me mi mia mie
            miei mio molto nel nella no noi non o per perché più quando quanto questa questo se sei
            si sono stato sul sulla su suo sua ti tu tutti tutto un una uno vi voi""",
        "pt": """a ao aos as até com como da das de do dos e é ela ele eles em era essa esse esta
            este está estava eu foi há isso já lhe mais mas me mesmo meu minha muito muita na nas
            nem no nos nossa nosso não o os ou para pela pelo por porque quando que quem se sem ser
            seu são só sua também te tem tinha tudo um uma você vocês""",
        "nl": """aan al als bij ben dan dat de der deze die dit door een en er ga geen haar had heb
            hebben heeft hem het hier hij hoe ik in is je kan kunnen maar me met meer mij mijn naar
            niet nog nu of om onder ons ook op over te tot uit van veel voor waar was waren wat
            weer wel we werd wie wij worden wordt ze zeer zich zij zijn zo zou""",
        "da": """af alle at blev da de deres det den der dig din du efter eller en er et for fra
            ham han har havde hos hun hvad hvis hvor hvordan hvornår i ikke ind jeg kan kom lige
            man med meget men mig min mine mit noget nogle nu når og også om op os over på sig sin
            skal som til ud under var ved vi vil være været""",
        "sv": """alla allt att av blev bra de dem den det dig din du där efter eller en ett från
            för ha hade han har hon honom hur i inte ja jag kan kommer man med men mer mig min mina
            mitt mycket ni nu när någon något och också om oss på sedan sig sin ska skulle som
            till under upp ut vad var vara varit vi vid vilken än är över""",
        "pl": """a aby ale bardzo bez bo być był była było były co czy dla do gdy gdzie go i ich ja
            jak jako je jego jej jest jestem już kiedy kto która które który ma mam mi mnie można
            mój moja moje na nam nas nie nic niż o od on ona oni po pod przed przez przy są się
            tak także tam te tego tej ten to tu ty tylko w wam we więc wszystko z za ze że""",
        "tr": """ama ben bana bende beni benim bir biraz birçok biz bizim bu bunu çok da daha de
            değil diye dolayı en gibi hangi hem hep her hiç için ile ise ki kadar kim mi mı mu mü
            nasıl ne neden nerede o olan olarak oldu olduğu olsun olur on onlar onu onun sen şey
            siz şu tüm var ve veya ya yok zaman yap yarın bugün""",
    }
)
_FUNCTION_WORDS: Final = MappingProxyType(
    {code: frozenset(words.split()) for code, words in _WORDS.items()}
)
_CODES_OF: Final[dict[str, list[str]]] = {
    word: [code for code, words in _FUNCTION_WORDS.items() if word in words]
    for word in frozenset[str]().union(*_FUNCTION_WORDS.values())
}
_LETTERS: Final = MappingProxyType(
    {
        "ß": ("de",),
        "ñ": ("es",),
        "¿": ("es",),
        "¡": ("es",),
        "ã": ("pt",),
        "õ": ("pt",),
        "ğ": ("tr",),
        "ı": ("tr",),
        "ş": ("tr",),
        "ł": ("pl",),
        "ż": ("pl",),
        "ę": ("pl",),
        "ą": ("pl",),
        "å": ("da", "sv"),
        "æ": ("da",),
        "ø": ("da",),
        "ä": ("de", "sv"),
        "œ": ("fr",),
        "ê": ("fr", "pt"),
        "ç": ("fr", "pt", "tr"),
    }
)
"""Letters that few of these languages write; each counts as a word that they share."""

_SCRIPTS: Final = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("zh", re.compile(r"[\u4e00-\u9fff]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
    ("Cyrl", re.compile(r"[\u0400-\u04ff]")),
    ("Arab", re.compile(r"[\u0600-\u06ff]")),
    ("Deva", re.compile(r"[\u0900-\u097f]")),
)
"""Scripts of one language as its code, others as the script's (ISO 15924)."""

_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]*)*")
_OTHER_SCRIPT: Final = 0.3  # of the letters; kana among Chinese signs is Japanese well below half
_WHOLE: Final = 2_520
"""Evidence of one function word; a whole number also where up to ten languages share it, so that
sums have no rounding and do not depend on an order."""

_LEAST: Final = _WHOLE  # one function word that no other of the languages has
_AHEAD: Final = _WHOLE // 2  # and so much more than the next language


def language(text: str) -> str:
    """ISO 639-1 code of the language, ISO 15924 code of a script of several, or "und"."""
    letters = sum(map(str.isalpha, text))
    if letters and not text.isascii():
        for code, script in _SCRIPTS:
            if len(script.findall(text)) >= _OTHER_SCRIPT * letters:
                return code
    evidence = Counter[str]()
    folded = unicodedata.normalize("NFC", text).replace("\u2019", "'").casefold()
    for word in _WORD.findall(folded):
        codes = _CODES_OF.get(word, ())
        for code in codes:
            evidence[code] += _WHOLE // len(codes)
    for letter in set(folded) & _LETTERS.keys():
        for code in _LETTERS[letter]:
            evidence[code] += _WHOLE // len(_LETTERS[letter])
    # Of equal ones none is ahead, so their order, which is that of a set of letters, is the same.
    (best, most), (_, next_most), *_ = [*evidence.most_common(2), ("", 0), ("", 0)]
    return best if most >= max(_LEAST, next_most + _AHEAD) else UNDETERMINED
