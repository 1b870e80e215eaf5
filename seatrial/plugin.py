"""Every pytest hook of seatrial: the command line, the plan, the outcomes, the end of the session."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from seatrial import config as profiles
from seatrial.bounds import load_package
from seatrial.check import Outcome, Planned
from seatrial.errors import InconclusiveError, SeatrialError, UsageError
from seatrial.plan import Plan, footprint
from seatrial.progress import Progress
from seatrial.quantity import format_seconds
from seatrial.site import Site, survey
from seatrial.trial import RECORD, Ticket, Trial, finish, new_ticket
from seatrial.verdict import Conclusion

TRIAL = pytest.StashKey[Trial]()
TICKET = pytest.StashKey[Ticket]()
CLUSTER = pytest.StashKey[profiles.Cluster]()
PLAN = pytest.StashKey[Plan]()
DESELECTED = pytest.StashKey[list[pytest.Item]]()
TROUBLE = pytest.StashKey[list[str]]()
CONCLUSION = pytest.StashKey[Conclusion]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of interface.md."""
    group = parser.getgroup("seatrial", "acceptance trial of a GPU cluster")
    group.addoption("--cluster", metavar="NAME", help="the cluster to try: a profile in clusters/, or a path to one")
    group.addoption("--plan", action="store_true", help="print what would run and what it may cost; touch nothing")
    group.addoption("--certify", action="store_true", help="a skipped check that the profile requires is not accepted")
    group.addoption("--run-dir", metavar="DIR", help="where the results go (default: runs/ID)")
    group.addoption("--yes", action="store_true", help="consent to a trial of a protected cluster")
    group.addoption("--seed", type=int, metavar="N", help="the seed of all data: the same data and order again")


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Pytest alone tries no cluster by accident: it names the profiles there are."""
    if config.getoption("--plan"):
        if config.getoption("--cluster") is None:
            raise pytest.UsageError(f"--plan needs a cluster; {_name_a_cluster(config)}")
        # A plan is drawn by one process.
        config.option.numprocesses, config.option.dist, config.option.tx = None, "no", []
    alone = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    if alone and config.getoption("--cluster") is None and not config.getoption("collectonly"):
        raise pytest.UsageError(_name_a_cluster(config))


def _name_a_cluster(config: pytest.Config) -> str:
    names = profiles.profiles(profiles.default_folders(config.invocation_params.dir))
    return f"which cluster? Name one: {', '.join(f'--cluster={name}' for name in names)}, or a path to a profile"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the profile and the bounds, and make the run directory; all mistakes end here, before anything runs."""
    config.addinivalue_line("markers", "trial(job, checks): what a test launches and which checks it means to judge")
    config.addinivalue_line("markers", "needs(nodes, gpus, ranks, feature): what a test cannot do without")
    if config.getoption("--cluster") is None:
        return
    try:
        _open(config)
    except SeatrialError as error:
        # A GPU that cannot be opened stops the run here too: nothing has been launched, and nothing could be measured.
        raise pytest.UsageError(str(error)) from error


def _open(config: pytest.Config) -> None:
    cwd = config.invocation_params.dir
    cluster = profiles.load_cluster(config.getoption("--cluster"), cwd)
    seed = config.getoption("--seed")
    config.stash[CLUSTER] = cluster
    config.stash[DESELECTED], config.stash[TROUBLE] = [], []
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        seed = worker["seatrial_seed"]
    elif seed is None:
        seed = secrets.randbelow(2**31)
    plan = config.stash[PLAN] = Plan(survey(cluster, seed), load_package())
    if config.getoption("--plan") or config.getoption("collectonly"):
        _touch_nothing(config)
        return
    if cluster.protected and not config.getoption("--yes"):
        raise UsageError(f"{cluster.name} is protected: a trial of it needs --yes (look at --plan first)")
    if worker is not None:
        ticket = Ticket(**{**worker["seatrial_ticket"], "worker": worker["workerid"]})
    else:
        ticket = new_ticket(config.getoption("--run-dir"), cwd)
        # A polite end (timeout, a scheduler) gets the same orderly finish as Ctrl-C.
        signal.signal(signal.SIGTERM, _interrupt)
    config.stash[TICKET] = ticket
    trial = config.stash[TRIAL] = Trial(ticket, cluster, plan)
    if worker is None:
        trial.open_record(["pytest", *map(str, config.invocation_params.args)])
    if config.getoption("numprocesses", None) and config.option.dist in ("no", "load"):
        # One suite's tests share one job's results, so they stay on one worker.
        config.option.dist = "loadgroup"


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _touch_nothing(config: pytest.Config) -> None:
    sys.dont_write_bytecode = True
    for name in ("lfplugin", "nfplugin", "stepwiseplugin"):
        plugin = config.pluginmanager.get_plugin(name)
        if plugin is not None:
            config.pluginmanager.unregister(plugin)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the run's identity to an xdist worker."""
    ticket = node.config.stash.get(TICKET, None)
    if ticket is not None:
        node.workerinput["seatrial_ticket"] = asdict(ticket)
        node.workerinput["seatrial_seed"] = node.config.stash[PLAN].site.seed


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """A worker that crashed leaves its checks to the controller, which will miss them by name."""
    if error and TROUBLE in node.config.stash:
        node.config.stash[TROUBLE].append(f"worker {node.gateway.id} crashed: {error}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which cluster is tried and where the results go."""
    if CLUSTER not in config.stash:
        return []
    site, lines = config.stash[PLAN].site, []
    selectors = site.selectors
    lines.append(
        f"seatrial: cluster {site.cluster.name}: {site.nodes} node(s), {site.ranks} ranks on "
        f"{selectors['accelerator']}, seed {site.seed}"
    )
    if TICKET in config.stash:
        lines.append(f"seatrial: results in {config.stash[TICKET].folder}")
    return lines


# Collection: the plan.


def _marks(item: pytest.Item) -> dict[str, Any]:
    mark = item.get_closest_marker("trial")
    return dict(mark.kwargs) if mark is not None else {}


def _checks(item: pytest.Item, site: Site) -> list[Planned]:
    make = _marks(item).get("checks")
    params = getattr(item, "callspec", None)
    return list(make(site, **(params.params if params is not None else {}))) if make is not None else []


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Remember what the command line left out: a required check that was left out is no pass."""
    for item in items:
        item.config.stash.get(DESELECTED, []).append(item)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Make the plan: which checks and jobs the selected tests mean; skip what the cluster cannot do."""
    for item in filter(_is_trial, items):
        # The suite's folder is its group: under xdist its tests share the results of one job.
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    yield
    trials = list(filter(_is_trial, items))
    plan = config.stash.get(PLAN, None)
    if plan is None:
        if trials and not config.getoption("collectonly"):
            raise pytest.UsageError(_name_a_cluster(config))
        return
    try:
        for item in trials:
            _plan_item(plan, item)
        footprint(config.stash[CLUSTER], list(plan.jobs.values()))
        _write_plan(config, plan, trials)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _is_trial(item: pytest.Item) -> bool:
    return item.get_closest_marker("trial") is not None


def _group(item: pytest.Item) -> str:
    return item.path.parent.name


def test_name(item: pytest.Item) -> str:
    """A test's name in the record, which xdist's grouping does not change."""
    return item.nodeid.removesuffix(f"@{_group(item)}")


def _plan_item(plan: Plan, item: pytest.Item) -> None:
    for planned in _checks(item, plan.site):
        plan.add(planned, test_name(item))
    reason = _unmet(item, plan.site)
    make = _marks(item).get("job")
    if reason:
        plan.skip(test_name(item), reason)
        item.add_marker(pytest.mark.skip(reason=reason))
    elif make is not None:
        spec = make(plan.site)
        plan.jobs[spec.name] = spec


def _write_plan(config: pytest.Config, plan: Plan, trials: Sequence[pytest.Item]) -> None:
    """One process of the run writes the plan: the only one, or xdist's first worker."""
    trial = config.stash.get(TRIAL, None)
    if trial is not None and trial.ticket.worker in ("main", "gw0"):
        left_out = [planned.id for item in config.stash[DESELECTED] for planned in _checks(item, plan.site)]
        trial.write_plan([*left_out, *_not_collected(config, trials)])


def _not_collected(config: pytest.Config, trials: Sequence[pytest.Item]) -> list[str]:
    """What naming files or tests on the command line leaves out of a suite, as names that begin with the suite's."""
    collected = {item.path for item in trials}
    files = {path for folder in {path.parent for path in collected} for path in folder.glob("test_*.py")}
    picked = [item for item in trials if any("::" in argument for argument in config.args)]
    return sorted(
        {f"{path.parent.name}.{path.name}" for path in files - collected}
        | {f"{item.path.parent.name}.{item.path.name}: only tests picked by name" for item in picked}
    )


def _unmet(item: pytest.Item, site: Site) -> str:
    """Why a test does not apply to this cluster; empty where it does."""
    has = {
        "nodes": site.nodes,
        "gpus": site.gpus_per_node * site.nodes,
        "ranks": site.ranks,
    }
    for mark in item.iter_markers("needs"):
        for what, wanted in mark.kwargs.items():
            if what == "feature":
                if wanted != site.device:
                    return f"needs {wanted!r}, this cluster has {site.device!r}"
            elif has[what] < wanted:
                return f"needs {wanted} {what}, this cluster has {has[what]}"
    return ""


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """How many bounds are armed."""
    plan = config.stash.get(PLAN, None)
    if plan is None or not len(plan):
        return []
    lines = [f"seatrial: {plan.armed} bounds armed, {plan.record_only} checks record-only"]
    return lines + [f"seatrial: {note}" for note in plan.notes()]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With --plan, print the plan in place of running it."""
    config = session.config
    if PLAN not in config.stash or not config.getoption("--plan") or session.testsfailed:
        return None
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    assert terminal is not None
    for line in config.stash[PLAN].paper(config.stash[CLUSTER]):
        terminal.write_line(line)
    return True


# The run: outcomes.


@pytest.fixture(scope="session")
def trial(request: pytest.FixtureRequest) -> Trial:
    """The run in this process."""
    config = request.config
    found = config.stash[TRIAL]
    capture = config.pluginmanager.get_plugin("capturemanager")
    is_worker = hasattr(config, "workerinput")
    stream = sys.__stderr__ if is_worker else sys.__stdout__
    assert stream is not None
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    # While a test is captured, only pytest's own reporter still knows what the stream is.
    progress = Progress(stream, live=not is_worker and terminal is not None and terminal.isatty)

    def watch(job: Any) -> None:
        quiet: AbstractContextManager[Any] = nullcontext() if capture is None else capture.global_and_fixture_disabled()
        with quiet:
            progress(job)

    found.watch = watch
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn what stopped a test into the outcome of the checks that it never came to judge."""
    report = yield
    trial = item.config.stash.get(TRIAL, None)
    if trial is None or not _is_trial(item) or getattr(item, "in_subtest", False):
        return report
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, SeatrialError):
        prefix = "inconclusive: " if isinstance(error, InconclusiveError) else "error: "
        report.longrepr = f"{prefix}{error}"
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        trial.fill(test_name(item), Outcome.SKIP, reason.removeprefix("Skipped: "))
    elif isinstance(error, InconclusiveError):
        trial.fill(test_name(item), Outcome.INCONCLUSIVE, str(error))
    elif report.failed and error is not None:
        trial.fill(test_name(item), Outcome.ERROR, f"{type(error).__name__}: {error}")
        if report.when == "teardown":
            item.config.stash[TROUBLE].append(f"{test_name(item)}: {error}")
    return report


# The end.


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the verdict and draw the reports; the exit status follows the verdict."""
    config = session.config
    trial = config.stash.get(TRIAL, None)
    if trial is None or TICKET not in config.stash:
        return
    trial.close()
    if hasattr(config, "workerinput"):
        return
    trouble: list[str] = [*config.stash[TROUBLE]]
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        trouble.insert(0, "interrupted")
    elif exitstatus in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        trouble.insert(0, f"the session ended with pytest's status {int(exitstatus)}")
    conclusion = finish(trial.ticket, trial.cluster, trouble, certify=config.getoption("--certify"))
    config.stash[CONCLUSION] = conclusion
    _draw(config, Path(trial.ticket.folder))
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.exitstatus = pytest.ExitCode.OK if conclusion.accepted else pytest.ExitCode.TESTS_FAILED


def _draw(config: pytest.Config, folder: Path) -> None:
    from seatrial import record  # noqa: PLC0415  (the reports are drawn at the end; the start stays quick)
    from seatrial.reports import allure, files, html, junit  # noqa: PLC0415

    known = record.read(folder / RECORD)
    files.replace(folder / "report.html", html.render(known))
    files.replace(folder / "junit.xml", junit.render(known))
    alluredir = config.getoption("allure_report_dir", None)
    if alluredir:
        allure.write_extras(known, Path(alluredir))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The verdict, the counts, the three worst findings, and where the report is."""
    conclusion = config.stash.get(CONCLUSION, None)
    if conclusion is None:
        return
    ticket = config.stash[TICKET]
    terminalreporter.section("seatrial")
    colour = {"green": True} if conclusion.accepted else {"red": True}
    terminalreporter.write_line(f"{conclusion.verdict.upper()}: {conclusion.reason}", bold=True, **colour)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in conclusion.counts.items() if count)
    terminalreporter.write_line(f"checks: {counts or 'none'}; {format_seconds(round(ticket.since(), 1))} in all")
    for finding in conclusion.worst:
        terminalreporter.write_line(f"  worst: {finding}")
    for missing in conclusion.missing[:3]:
        terminalreporter.write_line(f"  without an outcome: {missing}")
    terminalreporter.write_line(f"report: {Path(ticket.folder) / 'report.html'}")
