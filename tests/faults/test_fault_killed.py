"""Killed at any statement, and left behind with the thread inside."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_fault_calls import rows_of
from test_fault_ends import Prepared, done, receipts_apart

from children import ended
from systems import forks, posix_signals

TESTS = Path(__file__).parents[1]

KILLED = """
from pathlib import Path
warnings.simplefilter("ignore", DeprecationWarning)
sys.path[:0] = [f"{arguments[0]}/faults", arguments[0]]
from itertools import count
from test_fault_calls import WRITES, rows_of
from test_fault_ends import Prepared, done, receipts_apart
from stores import over_sqlite

clock = Clock()
prepared = asyncio.run(Prepared(Path(path), clock).prepare())
copy = prepared.path.with_name("copy.db")

async def dying(name, n, told):
    def traced(sql):
        nonlocal n
        n -= 1
        if n == 0:
            os.kill(os.getpid(), 9)

    async with prepared.scene() as scene:
        scene.database.connection.set_trace_callback(traced)
        await scene.call(name)
        os.write(told, b"acknowledged")
        os.kill(os.getpid(), 9)

def killed(name, n):
    listening, told = os.pipe()
    child = os.fork()
    if child == 0:
        asyncio.run(dying(name, n, told))
    os.close(told)
    said = os.read(listening, 99)
    os.close(listening)
    assert os.waitpid(child, 0)[1] == 9, "it did not die as it should"
    return said == b"acknowledged"

async def taken_over():
    def later():
        return clock.seconds() + 601

    async with connect(copy, clock=later) as database:
        records = SqliteCheckpointer(database)
        for workflow in ("w", "free"):
            assert await records.claim(workflow, MIN, MIN), "it is never taken over"
        await records.supply("after", "k", 1)

before = receipts_apart(rows_of(prepared.path))
for name in WRITES:
    after = asyncio.run(done(prepared, lambda scene: scene.call(name)))
    for n in count(1):
        acknowledged = killed(name, n)
        assert receipts_apart(rows_of(copy)) == (after if acknowledged else before), (name, n)
        if n == 4:
            asyncio.run(taken_over())
        if acknowledged:
            assert n > 3, (name, n)
            break
print("done")
"""


@forks
@posix_signals
def test_fault_killed_at_any_statement_a_call_is_there_once_acknowledged_and_never_by_half(path):
    child = ended(KILLED, path, TESTS)
    assert (child.code, child.out) == (0, "done\n"), child.err


LEFT_INSIDE = """
warnings.simplefilter("ignore")
sys.path[:0] = [f"{arguments[0]}/faults", arguments[0]]
from test_fault_calls import Scene, WRITES
from test_fault_ends import Stop
from gated import turns
from stores import over_sqlite

ending, first = arguments[1:]

async def begin():
    global database, stop, tasks
    clock = Clock()
    clock.advance(60 * MIN)  # to when the file was prepared
    database = connect(path, clock=clock.seconds)
    await migrate(database)
    scene = Scene(over_sqlite(database, clock), Pass("w", 0), Delivery("w", ""))
    stop = Stop(3, database.connection)
    tasks = [asyncio.ensure_future(scene.call(first))]
    while not stop.reached.is_set():
        await asyncio.sleep(0.001)
    if ending != "the loop closed":  # which cancels nobody: what is in line is still made
        tasks += [asyncio.ensure_future(scene.call(name)) for name in WRITES if name != first]
        await turns()
    opening = threading.Timer(0.15, stop.opened.set)
    opening.daemon = True
    opening.start()
    print("inside", flush=True)

async def used_and_closed():
    async with asyncio.timeout(5):
        await database.run(lambda connection: connection.execute("SELECT 1").fetchall())
        await database.aclose()
    print("of use", flush=True)

async def cancelled():
    await begin()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    await used_and_closed()

if ending == "every task cancelled":
    asyncio.run(cancelled())
if ending == "the loop closed":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    asyncio.run(used_and_closed())
if ending == "the loop torn down, the interpreter ending":
    asyncio.run(begin())
if ending == "the loop left as it is, the interpreter ending":
    asyncio.new_event_loop().run_until_complete(begin())
"""
ENDINGS = {
    "every task cancelled": "inside\nof use\n",
    "the loop closed": "inside\nof use\n",
    "the loop torn down, the interpreter ending": "inside\n",
    "the loop left as it is, the interpreter ending": "inside\n",
}


@pytest.mark.parametrize(
    ("ending", "first"), [*zip(ENDINGS, ["durable.arrive", "durable.delete"] * 2, strict=True)]
)
async def test_fault_left_inside_the_thread_ends_what_it_began_and_nothing_crashes_or_hangs(
    path, clock, ending, first
):
    prepared = await Prepared(path, clock).prepare()
    before = receipts_apart(rows_of(prepared.path))
    after = await done(prepared, lambda scene: scene.call(first))
    child = ended(LEFT_INSIDE, prepared.path, TESTS, ending, first)
    assert (child.code, child.out) == (0, ENDINGS[ending]), child.err
    assert "Fatal" not in child.err
    assert child.took < 5
    found = receipts_apart(rows_of(prepared.path))
    assert before != after
    assert found == after, "what had begun is not there whole, or what had not is there"
