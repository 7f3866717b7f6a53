"""Columns that identify people, as survey tools and forms name them, or by what is in them."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

PERSONAL: Final = frozenset(
    """
    address adresse anschrift cell cellnumber cellphone cellphonenumber contactaddress contactemail
    contactemailaddress contactname contactnumber contactphone contactphonenumber contacttelephone
    contacttelephonenumber customdata customdata1 dateofbirth dob email emailaddr emailaddress
    emailadresse emailid emails externaldatareference externalreference familienname familyname
    firstname forename fullname geburtsdatum givenname gps gpscoordinates handy handynummer
    homeaddress homephone ip ipaddr ipaddress lastname lat latitude latlng latlong lng
    locationlatitude locationlongitude lon longitude mailadresse middlename mobile mobilenumber
    mobilephone mobilephonenumber mobilnummer nachname name nationalinsurancenumber nhsnumber
    participantname passportnumber phone phonenumber plz postaladdress postalcode postcode
    postleitzahl recipientemail recipientfirstname recipientlastname respondentemail respondentname
    socialsecuritynumber ssn streetaddress surname tel telefon telefonnummer telephone
    telephonenumber telno username vorname whatisyouraddress whatisyouremail whatisyouremailaddress
    whatisyourfullname whatisyourname whatisyourphonenumber whatisyourpostcode workemail workphone
    youraddress youremail youremailaddress yourfirstname yourfullname yourlastname yourmobilenumber
    yourname yourphone yourphonenumber yourpostcode yoursurname yourtelephonenumber zip zipcode
    zippostalcode zippostcode
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)
"""Names without signs, spaces and case. Whole names alone: "Service name" identifies nobody."""

_PERSONAL_WORDS: Final = frozenset(
    "coordinates ip ipaddr ipaddress ipv latitude longitude".split()  # noqa: SIM905
)
"""Identify people in whatever short name they are a word: "User IP", "Latitude (deg)"."""

_SHORT_NAME: Final = 4  # words; in a longer one people are asked about something
_WORD: Final = re.compile(r"VoIP|IPv|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_ASIDE: Final = re.compile(
    r"^(?:optional|freiwillig)|(?:notrequired|optional|required|mandatory|freiwillig|"
    r"ifapplicable|ifany|ifyouwish)$"
)
_SUB_LABEL: Final = re.compile(r"\[([^\[\]]*)\]$|\s[-\u2013:]\s([^-\u2013:]+)$|:\s([^:]+)$")
"""What a tool puts behind the question that a column belongs to: "Your details [Email]"."""

_TICKS: Final = frozenset(
    {
        "1",
        "0",
        "yes",
        "no",
        "true",
        "false",
        "checked",
        "unchecked",
        "selected",
        "not selected",
    }
)
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s.]+(?:\.[^@\s.]+)+")
_PHONE: Final = re.compile(
    r"(?:\+|00)[1-9](?:[ ()./-]{0,2}[0-9]){7,14}"
    r"|\(?0[1-9](?:[ ()./-]{0,2}[0-9]){7,10}"
    r"|(?:1[ .-])?\(?[2-9][0-9]{2}\)?[ .-]{1,2}[0-9]{3}[ .-][0-9]{4}"
)
"""With a sign or a nought that ids, dates and amounts do not have in front, or as in America."""

_COORDINATES: Final = re.compile(r"\(?-?[0-9]{1,2}\.[0-9]{3,}\s*[,;]\s*-?[0-9]{1,3}\.[0-9]{3,}\)?")
_LONGEST_ADDRESS: Final = 254
_MOST: Final = 0.5


def personal_columns(
    columns: Sequence[str], questions: Mapping[str, str], rows: Sequence[Mapping[str, str]]
) -> list[str]:
    """The columns that identify people.

    By their name, by the question in the row below it, by what stands behind a question ("Contact
    details - Email") unless it is an option to tick, or because most of their filled cells are
    e-mail addresses, phone numbers, IP addresses or coordinates.
    """
    return [
        column
        for column in columns
        if _is_personal((column, questions.get(column, "")), [row[column] for row in rows])
    ]


def _is_personal(names: Iterable[str], cells: Sequence[str]) -> bool:
    names = list(names)
    if any(_plain(name) in PERSONAL or _has_personal_word(name) for name in names):
        return True
    filled = [cell.strip() for cell in cells if cell.strip()]
    for label in _sub_labels(names):
        if _plain(label) in PERSONAL and not _is_option(label, filled):
            return True
    return sum(map(_is_contact, filled)) > _MOST * len(filled)


def _plain(name: str) -> str:
    plain = re.sub(r"\[[^\[\]]*\]$|[\W_]", "", name).casefold()
    return _ASIDE.sub("", plain) or plain


def _has_personal_word(name: str) -> bool:
    words = [word.casefold() for word in _WORD.findall(name)]
    is_short = len(words) <= _SHORT_NAME and not name.strip().endswith("?")
    return is_short and not _PERSONAL_WORDS.isdisjoint(words)


def _sub_labels(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if found := _SUB_LABEL.search(name.strip()):
            yield next(part for part in found.groups() if part is not None)


def _is_option(label: str, filled: Sequence[str]) -> bool:
    """Whether people ticked it ("How may we reach you? [Email]") rather than filled it in."""
    ticks = _TICKS | {label.strip().casefold()}
    return bool(filled) and all(cell.casefold() in ticks for cell in filled)


def _is_contact(cell: str) -> bool:
    """Or another thing that leads to a person or a place."""
    if len(cell) > _LONGEST_ADDRESS:
        return False
    forms = (_EMAIL, _PHONE, _COORDINATES)
    return any(form.fullmatch(cell) for form in forms) or _is_ip_address(cell)


def _is_ip_address(cell: str) -> bool:
    """One, or several as proxies write them; a port may stand behind."""
    for address in re.split(r"\s*,\s*", cell):
        try:
            ipaddress.ip_address(re.sub(r"^([0-9.]+):[0-9]+$", r"\1", address))
        except ValueError:
            return False
    return True
