"""The staging suite against a real S3 server: what is sound passes, and each fault has the outcome that it deserves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import LabError, s3
from tests.faults.harness import Finished, SmallTrial

CHECKS = ("complete", "multipart", "ranges", "refusals")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.Server]:
    with pytest.MonkeyPatch.context() as patch:
        # A lab of the tests' own: one that a user has up stays as it is.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("lab")))
        try:
            found = s3.up()
        except LabError as error:
            if os.environ.get("SEATRIAL_LABS") == "required":
                raise
            pytest.skip(f"the S3 lab is left out: {error}")
        yield found
        removed = s3.down()
        assert f", {found.endpoint}" in removed[0]
        assert s3.running() is None
        assert not Path(found.root).exists()


def trial(folder: Path, server: s3.Server, storages: list[dict[str, str]], plant: str | None = None) -> Finished:
    env = {**server.environment, "SEATRIAL_PLANT_FOLDER": str(server.folder())}
    only = ("-k", "object or completes")
    return SmallTrial(folder, suite="staging", also={"storage": storages}, env=env, options=only, plant=plant).run()


def outcomes(done: Finished, storage: str) -> dict[str, str]:
    return {check: done.check(f"staging.object.{check}", storage=storage).outcome for check in CHECKS}


def test_a_data_set_is_staged_and_what_refuses_is_an_error_of_access(tmp_path: Path, server: s3.Server) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"[default]\naws_access_key_id = {server.access_key_id}\naws_secret_access_key = another\n")
    sound = server.storage
    refusing = {
        "wrong-key": ({"credentials": f"file:{keys}"}, "SignatureDoesNotMatch"),
        "no-key": ({"credentials": f"file:{tmp_path}/none"}, "no access_key_id and no secret_access_key in"),
        "no-bucket": ({"uri": "s3://nowhere"}, "NoSuchBucket"),
        "no-server": ({"endpoint": "http://127.0.0.1:9"}, "error sending request"),
    }
    others = [{**sound, "name": name, **changes} for name, (changes, _) in refusing.items()]
    done = trial(tmp_path, server, [*others, sound])
    assert outcomes(done, "bucket") == dict.fromkeys(CHECKS, "pass"), done.output
    assert "2 objects put in parts" in done.check("staging.object.multipart", storage="bucket").detail
    assert "wrong credentials, a bucket that is" in done.check("staging.object.refusals", storage="bucket").detail
    for name, (_, said) in refusing.items():
        assert outcomes(done, name) == dict.fromkeys(CHECKS, "error"), done.output
        reason = done.check("staging.object.complete", storage=name).reason
        assert f"storage {name} did not let us in: " in reason
        assert said in reason
    assert done.verdict == "not accepted"
    assert [path for path in server.folder().rglob("*") if path.is_file()] == []
    assert_no_secret(tmp_path / "run", done, server.secret_access_key)


def assert_no_secret(run: Path, done: Finished, secret: str) -> None:
    assert secret not in done.output
    for path in run.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_an_object_whose_checksum_differs_is_a_failure_that_names_it(tmp_path: Path, server: s3.Server) -> None:
    done = trial(tmp_path, server, [server.storage], plant="s3_corrupt")
    wrong = done.check("staging.object.complete")
    assert (wrong.outcome, wrong.observed) == ("fail", 1), done.output
    assert "shards/shard-0001: has sha256" in wrong.detail
    assert done.verdict == "rejected"
