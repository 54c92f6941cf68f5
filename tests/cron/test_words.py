"""Expressions in words."""

from __future__ import annotations

import pytest

from sqlstreams import cron


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * 1-5", "every weekday at 09:00 in New York"),
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("@hourly", "every hour"),
        ("7 * * * *", "at minute 7 of every hour"),
        ("*/25 * * * *", "at the minutes 0, 25 and 50 of every hour"),
        ("0-4,30 * * * *", "at the minutes 0 to 4 and 30 of every hour"),
        ("0 */2 * * *", "every 2 hours in New York"),
        ("0 */5 * * *", "every day at 00:00, 05:00, 10:00, 15:00 and 20:00 in New York"),
        ("30 8-18 * * *", "every hour from 08:30 to 18:30 in New York"),
        ("*/20 8-17,22 * * *", "every 20 minutes in the hours 8 to 17 and 22 in New York"),
        ("*/13 8-18 * * mon", "every Monday at the minutes 0, 13, 26, 39 and 52 in the hours 8 to 18 in New York"),
        ("*/15 * * * 1,0,3", "every 15 minutes, every Monday, Wednesday and Sunday in New York"),
        ("0 2 1 * *", "at 02:00 on the first day of the month in New York"),
        ("0 2 15 * *", "at 02:00 on day 15 of the month in New York"),
        ("0 2 1,15,L * 1", "at 02:00 on days 1 and 15, the last day and every Monday of the month in New York"),
        ("0 2 15W * *", "at 02:00 on the weekday nearest to day 15 of the month in New York"),
        ("0 2 * * L5,5#3", "at 02:00 on the third Friday and the last Friday of the month in New York"),
        ("@yearly", "at 00:00 on the first day of January in New York"),
        ("0 2 * 1,7 *", "every day of January and July at 02:00 in New York"),
        ("0 2 * 1 mon", "every Monday of January at 02:00 in New York"),
        ("@every 90s", "every 90 seconds"),
        ("@every 1m", "every minute"),
        ("@every 1h30m", "every 90 minutes"),
        ("@every 3661s", "every 1 hour 1 minute 1 second"),
        ("@every 1d", "every 24 hours"),
        ("@every 7d", "every 7 days"),
    ],
)
def test_an_expression_has_words(expression: str, words: str) -> None:
    assert cron.describe(expression, "America/New_York") == words


@pytest.mark.parametrize(
    ("timezone", "words"),
    [
        ("UTC", "every day at 09:00 UTC"),
        ("Europe/Berlin", "every day at 09:00 in Berlin"),
        ("America/Argentina/Buenos_Aires", "every day at 09:00 in Buenos Aires"),
        ("US/Eastern", "every day at 09:00 in US/Eastern"),
        ("Etc/GMT+5", "every day at 09:00 in Etc/GMT+5"),
    ],
)
def test_a_zone_is_told_by_its_city_where_it_has_one(timezone: str, words: str) -> None:
    assert cron.describe("0 9 * * *", timezone) == words
