"""What users have written before names changed goes on working."""

from __future__ import annotations

import pytest

import slotproof.plugin
from conformance.driver.protocol import PublishedEvents
from conformance.stems.kv_events import published, told
from conformance.stems.kv_events.published import Listener, publishing_call
from conformance.story.pasted import assert_holds
from conformance.telling import pasted


@pytest.mark.parametrize("name", slotproof.plugin.OLD_NAMES)
def test_an_old_name_of_the_plugin_stands_for_the_new_one(name: str) -> None:
    found = getattr(slotproof.plugin, name)
    assert found.__name__ in slotproof.plugin.__all__
    assert found is getattr(slotproof.plugin, found.__name__)


def test_an_unknown_name_is_still_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PoolEngin'"):
        _ = slotproof.plugin.PoolEngin


def test_a_test_that_was_pasted_before_finds_what_it_calls() -> None:
    assert assert_holds is pasted.assert_holds


def test_an_engine_that_has_the_old_call_told_publishes_events() -> None:
    class Old:
        def told(self) -> PublishedEvents:
            return PublishedEvents([["BlockGone"]], keys=[])

    class New(Old):
        def published(self) -> None:
            return None

    wrong = Listener(publishing_call(Old())).judge()
    assert wrong is not None
    assert "BlockGone" in wrong.detail
    assert Listener(publishing_call(New())).judge() is None, "the new name comes first"
    assert publishing_call(object()) is None


def test_a_test_of_events_finds_what_it_calls_at_its_old_place() -> None:
    assert told.differs is published.differs
