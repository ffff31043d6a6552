"""Killed between any two statements of a ledger's call: it is all in the file, or nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from children import ended
from systems import forks, posix_signals

TESTS = Path(__file__).parent

KILLED = """
from pathlib import Path
warnings.simplefilter("ignore", DeprecationWarning)
sys.path[:0] = [f"{arguments[0]}/faults", arguments[0]]
from itertools import count
from without_durability_sqlite import store
import test_injected_ledger as injected
from test_injected_ledger import CALLS, everything

store.SWEEPING = 9e9
prepared = injected.LedgerPrepared(Path(path))
prepared.out = asyncio.run(injected.prepare(prepared.path, Path(arguments[1])))
before = everything(prepared.path)

async def done(name):
    async with prepared.scene() as (scene, copy):
        await CALLS[name](scene)
        return everything(copy)

async def dying(name, n, told, at):
    passed = False

    def traced(sql):
        nonlocal n, passed
        n -= 1
        if n == 0:
            os.write(told, b"committed" if passed else b"inside")
            threading.Event().wait(60)  # until it is killed
        passed = passed or sql == "COMMIT"

    async with prepared.scene() as (scene, copy):
        os.write(at, str(copy).encode())
        scene.connection.set_trace_callback(traced)
        await CALLS[name](scene)
        os.write(told, b"acknowledged")
        threading.Event().wait(60)

def killed(name, n):
    told, at = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        asyncio.run(dying(name, n, told[1], at[1]))
    os.close(told[1]); os.close(at[1])
    copy, said = os.read(at[0], 9999).decode(), os.read(told[0], 99)
    os.close(told[0]); os.close(at[0])
    os.kill(child, 9)
    assert os.waitpid(child, 0)[1] == 9, "it did not die as it should"
    return Path(copy), said

async def taken_over(copy):
    clock = Clock()
    clock.advance(timedelta(seconds=1))
    async with injected.database(copy, clock) as opened:
        await injected.finish(injected.LedgerScene(opened, clock), copy)

for name in arguments[2:]:
    after = asyncio.run(done(name))
    assert after != before
    for n in count(1):
        copy, said = killed(name, n)
        assert everything(copy) == (before if said == b"inside" else after), (name, n, said)
        clock = Clock()
        clock.advance(timedelta(seconds=1))
        assert injected.odd(copy, clock) == [], (name, n, said)
        asyncio.run(taken_over(copy))
        copy.unlink()
        if said == b"acknowledged":
            assert n > 3, (name, n)
            break
print("done")
"""

ARRIVALS = ("arrive new", "arrive failed", "deliver blocked", "delete completed")
PASSES = ("start", "start all that is ready", "start one whose attempts are used up")
ENDS = ("end as completed", "end as failed for the last time", "end, though woken, as sleeping")
STEERING = ("retry failed", "cancel running", "rewind completed", "fork blocked", "sweep")


@forks
@posix_signals
@pytest.mark.parametrize("calls", [ARRIVALS, PASSES, ENDS, STEERING], ids=lambda calls: calls[0])
def test_a_call_is_all_there_or_not_at_all_and_a_worker_goes_on(
    path: Path, migrated: Path, calls: tuple[str, ...]
):
    child = ended(KILLED, path, TESTS, migrated, *calls, within=45)
    assert (child.code, child.out) == (0, "done\n"), child.err
