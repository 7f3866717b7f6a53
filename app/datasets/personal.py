"""Columns that identify people, as survey tools and forms name them."""

import re
from collections.abc import Sequence
from typing import Final

PERSONAL: Final = frozenset(
    """
    contactemail contactname contactnumber customdata customdata1 dateofbirth dob email emailaddr
    emailaddress emailid emails externaldatareference externalreference familyname firstname
    forename fullname givenname gpscoordinates homeaddress homephone ip ipaddr ipaddress lastname
    latitude locationlatitude locationlongitude longitude middlename mobile mobilenumber
    mobilephone name nationalinsurancenumber nhsnumber participantname passportnumber phone
    phonenumber postaladdress postalcode postcode recipientemail recipientfirstname
    recipientlastname respondentemail respondentname socialsecuritynumber ssn streetaddress surname
    telephone telephonenumber username whatisyouremail whatisyouremailaddress whatisyourfullname
    whatisyourname whatisyourphonenumber whatisyourpostcode youremail youremailaddress yourfirstname
    yourfullname yourlastname yourname yourphonenumber yourpostcode zipcode
    """.split()  # noqa: SIM905 - a paragraph is read and mended more easily than a list
)
"""Names without signs, spaces and case. Whole names alone: "Service name" identifies nobody."""


def personal_columns(columns: Sequence[str], questions: dict[str, str]) -> list[str]:
    """The columns that identify people by their name, or by the question in the row below it."""
    return [
        column
        for column in columns
        if _plain(column) in PERSONAL or _plain(questions.get(column, "")) in PERSONAL
    ]


def _plain(name: str) -> str:
    return re.sub(r"\[[^\]]*\]$|[\W_]", "", name).casefold()
