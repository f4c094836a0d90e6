"""Several gateways on one PostgreSQL: each follows what another runs in the background; what one that is killed has left,
another takes over when its lease is out, and not before. A real PostgreSQL (tests/postgres.sh)."""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from conftest import NOT_RUN, ROOT, SCRIPT, Server, wait_for

TAKEN = "unfinished work of another process is taken up"


@pytest.fixture(scope="module")
def postgres():
    """The folder of a running server's socket."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nereid-pg-", dir="/tmp"))
    folder.chmod(0o755)    # PostgreSQL runs as a user of its own
    process = subprocess.Popen(["bash", ROOT / "tests/postgres.sh", folder / "pg"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if process.stdout.readline().strip() != "ready":
            NOT_RUN["take-over of background work (tests/e2e/test_takeover.py)"] = "no PostgreSQL on this machine"
            pytest.skip("no PostgreSQL")
        yield folder / "pg"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def lease_of(folder, name=""):
    """When the lease of a pending job ends, as its row says; None: there is no such row."""
    psql = shutil.which("psql") or str(max(pathlib.Path("/usr/lib/postgresql").glob("*/bin/psql")))
    done = subprocess.run([psql, "-h", folder, "-U", "nereid", "-d", "postgres", "-Atc",
                           "select convert_from(body, 'UTF8') from nereid_records where kind = 'pending' "
                           f"and id like '%{name}'"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[0])["alive_until"] if done.stdout.strip() else None


def test_background_work_of_a_killed_gateway_is_taken_over(postgres):
    args = ["serve", "--port", "0", "--engine", "scripted", "--script", str(SCRIPT), "--gateway.job_lease", "2s",
            "--state", f"postgres:///postgres?host={postgres}&user=nereid"]
    first, second = Server(args), Server(args)
    try:
        here, there = first.client().responses, second.client().responses
        running = here.create(model="scripted", input="say-forever", background=True)
        begun = wait_for(lambda: lease_of(postgres), what="a lease")
        # It is renewed for longer than it lasts, and the other leaves it alone.
        wait_for(lambda: lease_of(postgres) >= begun + 4, 30, "renewals")
        assert there.retrieve(running.id).status in ("queued", "in_progress") and TAKEN not in second.log()

        # Its stream is given there too, while it runs and to its end.
        live = there.retrieve(running.id, stream=True, starting_after=2)
        assert [event.sequence_number for event, _ in zip(live, range(12), strict=False)] == list(range(3, 15))
        live.close()
        assert there.retrieve(running.id).status == "in_progress"
        whole = here.create(model="scripted", input="say-slowly", background=True)
        assert list(there.retrieve(whole.id, stream=True)) == list(here.retrieve(whole.id, stream=True))

        # Cancelled at the other: it stays so, and the first stops computing.
        elsewhere = here.create(model="scripted", input="say-forever", background=True)
        wait_for(lambda: first.metric_sum("nereid_engine_running") == 2, 30, "both run")
        seen = lease_of(postgres, elsewhere.id)
        wait_for(lambda: lease_of(postgres, elsewhere.id) > seen, 30, "its lease is renewed")
        assert there.cancel(elsewhere.id).status == "cancelled"
        wait_for(lambda: first.metric_sum("nereid_engine_running") == 1, 30, "one was stopped")
        assert here.retrieve(elsewhere.id).status == there.retrieve(elsewhere.id).status == "cancelled"

        slow = here.create(model="scripted", input="say-slowly", background=True)
        first.process.kill()
        first.process.wait()
        done = wait_for(lambda: (r := there.retrieve(slow.id)).status not in ("queued", "in_progress") and r, 30, "the end")
        assert done.status == "completed" and done.output_text.endswith("ten")
        wait_for(lambda: second.log().count(TAKEN) >= 1 and there.retrieve(running.id).status == "in_progress", 30, "the take-over")
        assert list(there.retrieve(slow.id, stream=True))[-1].type == "response.completed"
        wait_for(lambda: second.metric_sum("nereid_engine_running") == 1, 30, "it runs again")
        assert there.cancel(running.id).status == "cancelled"
        wait_for(lambda: lease_of(postgres) is None, 20, "nothing is pending")
        assert there.retrieve(elsewhere.id).status == "cancelled"
    finally:
        first.stop(number=9)
        assert second.stop() == 0
        first.dir.cleanup()
        second.dir.cleanup()
