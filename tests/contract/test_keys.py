"""API keys in the store: kept by their digest, useless once revoked; and what their holders have
waiting."""

from contract.steps import new_node

from app.db.ids import new_id
from app.db.interface import DBInterface
from app.domain.jobs import JobOptions
from app.domain.keys import Pending, Scope, digest, new_key


async def test_a_key_is_found_by_its_digest_until_it_is_revoked(db: DBInterface) -> None:
    assert not await db.has_keys()
    key = new_key()

    stored = await db.insert_key("ci", key, Scope.SUBMIT, max_pending_jobs=5)

    assert await db.has_keys()
    found = await db.find_key(digest(key))
    assert found == stored
    assert (stored.name, stored.prefix, list(stored.scopes)) == ("ci", key[:12], ["submit"])
    assert (stored.max_pending_jobs, stored.max_pending_bytes) == (5, None)
    assert stored.created_at is not None
    assert stored.last_used_at is stored.revoked_at is None
    assert await db.find_key(digest(new_key())) is None

    assert await db.revoke_key(stored.id)

    assert await db.find_key(digest(key)) is None
    assert await db.has_keys()
    assert not await db.revoke_key(stored.id)
    assert not await db.revoke_key(new_id())
    assert not await db.revoke_key("no id")
    [listed] = await db.list_keys()
    assert listed.revoked_at is not None


async def test_once_a_key_was_made_there_are_keys(db: DBInterface) -> None:
    first = await db.insert_key("a", new_key(), Scope.READ)
    second = await db.insert_key("b", new_key(), Scope.ADMIN)
    await db.revoke_key(first.id)

    assert await db.has_keys()
    assert [key.name for key in await db.list_keys()] == ["a", "b"]
    await db.revoke_key(second.id)
    assert await db.has_keys()


async def test_the_use_of_a_key_is_noted_once_a_minute(db: DBInterface) -> None:
    key = await db.insert_key("a", new_key(), Scope.READ)

    await db.note_key_use(key.id)
    [noted] = await db.list_keys()
    await db.note_key_use(key.id)
    [again] = await db.list_keys()

    assert noted.last_used_at is not None
    assert again.last_used_at == noted.last_used_at


async def test_what_a_submitter_has_waiting_is_counted(db: DBInterface) -> None:
    ours = JobOptions(submitted_by="ours")
    assert await db.count_pending("ours") == Pending(0, 0)

    first = await db.insert_pending_job({"a": 1}, ours)
    await db.insert_pending_job({"b": "x" * 1_000}, JobOptions(submitted_by="ours", priority=-1))
    await db.insert_pending_job({}, JobOptions(submitted_by="theirs"))
    await db.insert_pending_job({}, JobOptions())

    both = await db.count_pending("ours")
    assert both.jobs == 2
    assert 1_000 < both.size_bytes < 2_000
    assert (await db.count_pending("theirs")).jobs == 1
    assert await db.count_pending("") == Pending(0, 0)  # nobody known has no caps
    assert await db.get_submitter(first) == "ours"
    mine = await db.insert_dataset(
        "a", ["t"], [["x"]], sha256="ab" * 32, detected={}, submitted_by="ours"
    )
    other = await db.insert_dataset("a", ["t"], [["x"]], sha256="ab" * 32, detected={})
    assert [await db.count_datasets(who) for who in ("ours", "theirs", "")] == [1, 0, 0]
    assert await db.get_dataset_submitter(mine.id) == "ours"
    assert await db.get_dataset_submitter(other.id) == ""
    assert await db.get_dataset_submitter(new_id()) is None
    assert await db.get_dataset_submitter("no id") is None
    assert await db.get_submitter(new_id()) is None
    assert await db.get_submitter("no id") is None

    claimed = await db.claim_next_pending_job(await new_node(db))

    assert claimed is not None
    assert claimed.id == first
    assert (await db.count_pending("ours")).jobs == 1
