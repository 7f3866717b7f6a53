"""Words that say how many people or answers: what a model may not say in a name or description.

In the languages that answers are mostly in; "two hours" and the like are fine, since they count no
people. A figure needs no language, and is held against the answers elsewhere.
"""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class _Language:
    """How one language counts people; alternatives of a regular expression each.

    Attributes:
        outright: say how many of their own accord ("the majority").
        amounts: say so where people or "of" follow ("two", "many").
        of: what stands between an amount and those that it is a part of.
        people: whom surveys count.
    """

    outright: str
    amounts: str
    of: str
    people: str


_LANGUAGES: Final = (
    _Language(
        r"most|mostly|majorit\w+|minorit\w+|millions?|billions?|trillions?|dozens?|nobody|no one"
        r"|everyone|everybody|universally|unanimous\w*|overwhelmingly|predominantly",
        r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty"
        r"|fifty|sixty|seventy|eighty|ninety|hundreds?|thousands?|half|halves|thirds?|fourths?"
        r"|quarters?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|twel(?:fth|ve)s?"
        r"|\w+teenths?|\w+tieths?|hundredths?|thousandths?"
        r"|all|every|each|none|both|no|many|few|several|some|single|one",
        r"of",
        r"people|persons?|patients?|respondents?|participants?|answers|responses|comments"
        r"|employees?|customers?|students?|visitors?|guests?|residents?|users?|staff members"
        r"|members|them|who|say|complain|praise",
    ),
    _Language(
        r"die (?:aller)?meisten|meistens|mehrheit\w*|minderheit\w*|niemand\w*|jedermann"
        r"|überwiegend\w*|größtenteils|(?:fast|nahezu|beinahe) alle\w*|millionen|einhellig\w*"
        r"|einstimmig\w*|hälfte",
        r"ein(?:er|e)?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf|\w+zehn|\w+zig"
        r"|\w*dreißig|\w*hundert\w*|\w*tausend\w*|dutzende?|drittel|viertel|fünftel|zehntel|alle[rn]?"
        r"|jede[rs]?|keine?[rn]?|beide[rn]?|viele[rn]?|wenige[rn]?|mehrere[rn]?|einige[rn]?|manche[rn]?",
        r"der|aller|von",
        r"personen|menschen|leuten?|befragten?|patient(?:en|innen)\w*|teilnehm\w+|antworten"
        r"|kommentaren?|kund(?:en|innen)|mitarbeit\w+|besucher\w*|gästen?|nutzer\w*|bewohner\w*"
        r"|studierenden?|schüler\w*|bürger\w*|eltern",
    ),
    _Language(
        r"la plupart|majorit\w+|minorit\w+|unanim\w+|tout le monde|presque tou(?:s|tes)"
        r"|(?:des )?(?:dizaines|centaines|milliers)|la moitié",
        r"une?|deux|trois|quatre|cinq|six|sept|huit|neuf|dix|onze|douze|\w*quinze|vingt|trente"
        r"|quarante|cinquante|soixante|cent|mille|moitié|tiers|quart|plusieurs|beaucoup|quelques"
        r"|certain\w*|tous|toutes|peu|chaque|aucune?",
        r"des|d'entre|de (?:ces|nos|vos)",
        r"(?:de |d'|des |les )?(?:personnes?|gens|répondant\w*|participant\w*|patient\w*|réponses"
        r"|commentaires|client\w*|employé\w*|visiteu\w+|étudiant\w*|habitant\w*|usagers"
        r"|utilisateurs)",
    ),
    _Language(
        r"mayor[ií]a\w*|mayoritari\w+|minor[ií]a|un[aá]nime\w*|nadie|todo el mundo|casi tod[oa]s"
        r"|la mitad|cientos|miles|docenas?|decenas?",
        r"una?|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|doce|veinte|treinta|cuarenta"
        r"|cincuenta|sesenta|setenta|ochenta|noventa|cien\w*|mil|tercio|cuarto|much[oa]s|poc[oa]s"
        r"|vari[oa]s|algun[oa]s|tod[oa]s|cada|ning[uú]n\w*",
        r"de (?:los|las|ell[oa]s)",
        r"(?:de )?(?:los |las )?(?:personas?|gente|encuestad\w+|participantes|pacientes|respuestas"
        r"|comentarios|clientes|emplead\w+|visitantes|usuari\w+|estudiantes|alumn\w+)",
    ),
    _Language(
        r"maggioranz\w+|minoranz\w+|maggior parte|unanim\w+|nessuno|quasi tutt[ie]|la metà"
        r"|centinaia|migliaia|decine|dozzin\w",
        r"una?|due|tre|quattro|cinque|sei|sette|otto|nove|dieci|dodici|venti|trenta|quaranta"
        r"|cinquanta|sessanta|settanta|ottanta|novanta|cento|mille|terzo|quarto|molt[ie]|poch[ie]"
        r"|alcun[ie]|tutt[ie]|ogni|ciascun\w*|divers[ie]|parecch\w+",
        r"dei|degli|delle|di (?:loro|questi)",
        r"(?:i |le |gli )?(?:person[ae]|gente|intervistat\w|partecipanti|pazienti|rispost[ae]"
        r"|comment[io]|client[ie]|dipendent[ie]|visitator\w+|utenti|student\w+|cittadini)",
    ),
    _Language(
        r"de meesten?|meestal|meerderheid|minderheid|unaniem|niemand|iedereen|bijna alle\w*"
        r"|de helft|honderden|duizenden|tientallen",
        r"een|één|twee|drie|vier|vijf|zes|zeven|acht|negen|tien|elf|twaalf|\w+tien|\w+tig|honderd"
        r"|duizend|derde|kwart|alle|elke|ieder\w*|geen|beiden?|vele|veel|weinig|enkele|sommige"
        r"|meerdere|verschillende",
        r"van (?:de|hen)",
        r"mensen|personen|respondent\w*|deelnemers|patiënt\w*|antwoorden|reacties|klanten"
        r"|medewerkers|bezoekers|gebruikers|studenten|bewoners|ouders",
    ),
)
_PATTERNS: Final = tuple(
    re.compile(
        rf"\b(?:{each.outright})\b"
        rf"|\b(?:{each.amounts}|\d[\d.,]*)\s+(?:(?:{each.of})\b|(?:\w+\s+)?(?:{each.people})\b)",
        re.IGNORECASE,
    )
    for each in _LANGUAGES
)
_PERCENTAGE: Final = re.compile(
    r"\d\s*(?:[%٪\uff05]|per\s?cent|pro[cz]ent|pour\s?cent|por\s?ciento)", re.IGNORECASE
)


def quantities_of_people(text: str) -> list[str]:
    """Words and figures that say how many people or answers; fine are "two hours" and the like."""
    found = [match.group() for pattern in _PATTERNS for match in pattern.finditer(text)]
    found += [match.group() for match in _PERCENTAGE.finditer(text)]
    return list(dict.fromkeys(found))
