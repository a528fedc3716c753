"""Draw crash maps on all cores: each process has a sandbox of its own and kills at its share of the points."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from redelivery import policy
from redelivery.testing.case import Case
from redelivery.testing.crashmap import CrashMap, CrashMapError
from redelivery.testing.duplicates import Duplicates, deliver_twice
from redelivery.testing.killer import Killer
from redelivery.testing.processes import die_with_parent
from redelivery.testing.sandbox import SandboxError, World, sandbox

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Drawn:
    """What came of one task: its map and, where asked for, its duplicates; or the reason why there is none."""

    task: str
    crash_map: CrashMap | None = None
    duplicates: Duplicates | None = None
    error: str | None = None

    def as_json(self) -> dict:
        """Return plain data."""
        if self.error:
            return {"task": self.task, "error": self.error}
        return {
            **self.crash_map.as_json(),
            **({"duplicates": vars(self.duplicates)} if self.duplicates else {}),
        }


def draw(
    cases: list[Case], *, duplicates: bool = False, jobs: int | None = None, progress: Progress | None = None
) -> list[Drawn]:
    """Draw the maps of some cases.

    Args:
        cases: what to draw.
        duplicates: also deliver twice without a kill.
        jobs: processes; the number of cores, at most 4, without it.
        progress: called with a task's name, kills done and kills to do.

    Raises:
        SandboxError: the sandbox cannot be made.
    """
    jobs = jobs or min(len(cores()), 4)
    context = multiprocessing.get_context("fork")
    ours, processes = [], []
    for part in range(jobs):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=draw_part, args=(cases, part, jobs, duplicates and part == 0, theirs)
        )
        process.start()
        theirs.close()
        ours.append(mine)
        processes.append(process)
    try:
        parts = receive(ours, progress or (lambda task, done, total: None))
    except BaseException:  # Ctrl-C, too: nobody waits for the rest
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
    return [merge(list(drawn)) for drawn in zip(*parts, strict=True)]


def receive(pipes: list[Connection], progress: Progress) -> list[list[Drawn]]:
    """Return the results of all parts in their order; raises the SandboxError of a part that could not begin."""
    results: dict[Connection, list[Drawn]] = {}
    done: dict[str, int] = {}
    while len(results) < len(pipes):
        for pipe in wait([pipe for pipe in pipes if pipe not in results]):
            try:
                message = pipe.recv()
            except EOFError:
                raise SandboxError(
                    "a process that draws the maps ended without a result; its own message is above"
                ) from None
            if isinstance(message, SandboxError):
                raise message
            if isinstance(message, list):
                results[pipe] = message
            else:
                task, total = message
                done[task] = done.get(task, 0) + 1
                progress(task, done[task], total)
    return [results[pipe] for pipe in pipes]


def draw_part(cases: list[Case], part: int, parts: int, duplicates: bool, pipe: Connection) -> None:
    """Draw every `parts`-th point of each map, in a process of its own, and send what came of it."""
    die_with_parent(multiprocessing.parent_process().pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    try:
        stay_on([own_core(part)])
        with sandbox() as world:
            pipe.send([draw_one(case, world, part, parts, duplicates, pipe) for case in cases])
    except (SandboxError, policy.PolicyError) as error:
        pipe.send(SandboxError(str(error)))


def draw_one(case: Case, world: World, part: int, parts: int, duplicates: bool, pipe: Connection) -> Drawn:
    """Draw this part's share of one map."""
    killer = None
    try:
        killer = Killer(case, world)
        crash_map = killer.draw(part, parts, lambda total: pipe.send((case.task, total)))
        if not duplicates:
            return Drawn(case.task, crash_map)
        with all_cores():
            return Drawn(case.task, crash_map, deliver_twice(killer, crash_map))
    except CrashMapError as error:
        return Drawn(case.task, error=str(error))
    finally:
        if killer:
            killer.close()


def cores(pid: int = 0) -> list[int]:
    """Return the cores that a process (0: this one) may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(pid))
    return list(range(os.cpu_count() or 1))


def own_core(part: int) -> int:
    """Choose the core of a part; maps that are drawn side by side are not to meet on the first ones.

    The processes of a part take turns. A kernel that wakes each where it likes leaves cores idle meanwhile (measured: a
    fifth of the time of a map).
    """
    available = cores()
    return available[(os.getppid() + part) % len(available)]


def stay_on(these: list[int]) -> None:
    """Keep this process, and what it starts from now on, on these cores (Linux; elsewhere nothing)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, these)


@contextmanager
def all_cores():
    """Let what is started meanwhile use every core that the parent may use: twins are to run at the same moment."""
    mine = cores()
    stay_on(cores(os.getppid()))
    try:
        yield
    finally:
        stay_on(mine)


def merge(shares: list[Drawn]) -> Drawn:
    """Put the shares of one map together."""
    for share in shares:
        if share.error:
            return share
    maps = [share.crash_map for share in shares]
    whole = maps[0]
    if len({len(crash_map.path) for crash_map in maps}) > 1:
        return Drawn(
            whole.task,
            error=f"{whole.task}: its path differs from run to run: {[len(m.path) for m in maps]} opcodes",
        )
    kills = {kill.position: kill for crash_map in maps for kill in crash_map.kills}
    whole.kills = [kills[position] for position in sorted(kills)]
    whole.seconds = max(crash_map.seconds for crash_map in maps)
    return Drawn(whole.task, whole, shares[0].duplicates)
