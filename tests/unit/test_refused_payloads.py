"""What a payload is refused for is said once, naming the field."""

from __future__ import annotations

import pytest

from sqlstreams import InvalidInput, RawPayload
from sqlstreams.codec import Codec


def test_a_raw_payload_that_is_no_json_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"^payload must be valid JSON: [^:]*") as refused:
        Codec(RawPayload).encode(RawPayload(b'{"n": NaN}'))

    assert refused.value.field == "payload"
    assert "cannot be written" not in str(refused.value)
