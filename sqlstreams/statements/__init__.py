"""Every statement as a value: the SQL of sql/*.sql filled in, its parameters, and what a row becomes."""

from sqlstreams.statements.binding import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.compaction import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.consume import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.dead import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.deadline import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.delay import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.group import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.idempotency import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.instance import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.key import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.manager import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.position import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.produce import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.retention import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.schedule import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.statement import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.stream import *  # noqa: F403  # one namespace, a file a noun
from sqlstreams.statements.system import *  # noqa: F403  # one namespace, a file a noun
