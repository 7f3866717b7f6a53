"""Numbers in words and in Roman signs: figures that nobody computed, in the languages of reports.

Words that mean something else in another of these languages are left out ("once" is eleven in
Spanish, "due" two in Italian), and so is "one".
"""

import re
from typing import Final

ENGLISH: Final = (
    r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousands?|millions?|dozens?"
    r"|half|halves|thirds?|quarters?|fifths?|tenths?|twice|doubled?|tripled?|majority|minority"
)
_GERMAN: Final = (
    r"zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|zwölf|\w{3,}zehn|\w*(?:zwan|vier|fünf|sech"
    r"|sieb|acht|neun)zig|\w*dreißig|\w*hundert|\w*tausend|hälfte|drittel|mehrheit|minderheit"
)
_FRENCH: Final = (
    r"deux|trois|quatre|cinq|sept|huit|neuf|onze|douze|treize|quatorze|quinze|seize|vingt|trente"
    r"|quarante|cinquante|soixante|moitié|majorité|minorité|plupart|dizaines?|centaines?|milliers?"
)
_SPANISH: Final = (
    r"dos|tres|cuatro|cinco|siete|ocho|nueve|diez|doce|trece|catorce|quince|veinte|treinta|cuarenta"
    r"|cincuenta|sesenta|setenta|ochenta|noventa|cien|ciento|mitad|mayoría|minoría"
)
_ITALIAN: Final = (
    r"quattro|cinque|sette|otto|nove|dieci|undici|dodici|venti|trenta|quaranta|cinquanta|sessanta"
    r"|settanta|ottanta|novanta|cento|metà|maggioranza|minoranza"
)
_DUTCH: Final = (
    r"twee|drie|vijf|zes|zeven|negen|tien|elf|twaalf|\w{3,}tien|twintig|dertig|veertig|vijftig"
    r"|zestig|zeventig|tachtig|negentig|honderd|duizend|helft|meerderheid|minderheid"
)
NUMBER_WORD: Final = re.compile(
    rf"\b(?:{ENGLISH}|{_GERMAN}|{_FRENCH}|{_SPANISH}|{_ITALIAN}|{_DUTCH})\b", re.IGNORECASE
)
# At least two signs, in capitals, and no abbreviation of something else: "I" and "mix" are words.
ROMAN: Final = re.compile(
    r"\b(?=[IVXLC]{2})(?!(?:CV|XL)\b)C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?<=\w)\b"
)
