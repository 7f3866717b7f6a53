"""Transactions whose process was killed in the middle: the server knows them open for a minute.

Until then nobody else can change what they have changed, the end of their very job included. Ours
take milliseconds between two commands, so one that has been idle for longer is ended by whoever it
is in the way of. That is safe in any case: a process that was only slow does its transaction again.
"""

from typing import Final

from pymongo.read_concern import ReadConcern

from app.db.mongo.connections import APPLICATION_PREFIX, Client

# Also the time after which a call that has not come to its end looks for such a transaction.
ABANDONED_SECONDS: Final = 1.0


async def end_abandoned(client: Client) -> None:
    """End our transactions that have been idle for ABANDONED_SECONDS."""
    admin = client.get_database("admin", read_concern=ReadConcern("local"))
    found = await admin.aggregate(
        [
            {"$currentOp": {"idleSessions": True}},
            {
                "$match": {
                    "type": "idleSession",
                    "appName": {"$regex": f"^{APPLICATION_PREFIX}"},
                    "transaction.timeInactiveMicros": {"$gt": ABANDONED_SECONDS * 1_000_000},
                }
            },
            {"$project": {"lsid.id": 1}},
        ]
    )
    sessions = [operation["lsid"] async for operation in found]
    if sessions:
        await admin.command("killSessions", sessions)
