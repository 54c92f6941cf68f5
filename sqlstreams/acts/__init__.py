"""What each verb asks of the database, step by step: written once, driven by the blocking and the async client."""

from sqlstreams.acts.binding import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.compaction import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.dead import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.deadline import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.delay import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.group import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.manager import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.position import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.retention import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.schedule import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.stream import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.acts.system import *  # noqa: F403  # one namespace, a file a noun
