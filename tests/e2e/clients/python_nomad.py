"""Calls an agent through python-nomad, a client of Nomad's API.

usage: python_nomad.py PORT TOKEN

The agent runs the service job `web` with one task `t`, which prints `hello` and then sleeps. Each part prints a line. The first
difference from Nomad ends the script with the value found.
"""

import json
import sys
import time

import nomad
from nomad.api import exceptions


def until(what, look):
    """Calls `look` until it returns a value, and returns the value."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"timed out waiting for {what}")


def refused(kind, ask):
    """Returns status and text of a refused request."""
    try:
        ask()
    except kind as error:
        response = error.nomad_resp
        return response.status_code, response.text
    raise AssertionError("the request was not refused")


def running(api):
    return until(
        "a running allocation",
        lambda: [one for one in api.job.get_allocations("web") if one["ClientStatus"] == "running"],
    )[0]


def jobs(api):
    (stub,) = api.jobs.get_jobs()
    assert (stub["ID"], stub["Type"], stub["Status"]) == ("web", "service", "running"), stub
    assert stub["JobSummary"]["Summary"]["g"]["Running"] == 1, stub
    assert "web" in api.jobs and "other" not in api.jobs
    assert api.jobs.get_jobs(prefix="w") and not api.jobs.get_jobs(prefix="x")
    job = api.job.get_job("web")
    assert job["TaskGroups"][0]["Tasks"][0]["Name"] == "t", job
    assert api.job.get_summary("web")["Summary"]["g"]["Queued"] == 0
    assert api.job.get_versions("web")["Versions"][0]["Version"] == job["Version"]
    answer = api.job.evaluate_job("web")
    evaluation = api.evaluation.get_evaluation(answer["EvalID"])
    assert (evaluation["Status"], evaluation["JobID"]) == ("complete", "web"), evaluation
    assert answer["EvalID"] in [one["ID"] for one in api.job.get_evaluations("web")]
    assert answer["EvalID"] in [one["ID"] for one in api.evaluations.get_evaluations()]
    (alloc,) = api.job.get_allocations("web")
    assert [one["ID"] for one in api.evaluation.get_allocations(alloc["EvalID"])] == [alloc["ID"]]
    assert refused(exceptions.URLNotFoundNomadException, lambda: api.job.get_job("none")) == (404, "job not found")


def allocations(api):
    alloc = running(api)
    assert api.allocations.get_allocations(prefix=alloc["ID"][:8])[0]["ID"] == alloc["ID"]
    assert api.allocations.get_allocations(per_page=1, reverse=True, resources=True)[0]["AllocatedResources"]["Tasks"]["t"]
    assert api.allocations.get_allocations(filter_='ClientStatus == "nothing"') == []
    assert alloc["ID"] in api.allocation
    whole = api.allocation.get_allocation(alloc["ID"])
    assert whole["Job"]["ID"] == "web" and whole["TaskStates"]["t"]["State"] == "running", whole
    stats = api.client.allocation.read_allocation_stats(alloc["ID"])
    assert "t" in stats["Tasks"], stats


def files(api):
    alloc = running(api)["ID"]
    names = [one["Name"] for one in api.client.ls.list_files(alloc)]
    assert "t" in names and "alloc" in names, names
    path = "alloc/logs/t.stdout.0"
    until("the log", lambda: "hello" in api.client.cat.read_file(alloc, path))
    assert api.client.stat.stat_file(alloc, path)["Size"] >= 6
    assert api.client.read_at.read_file_offset(alloc, 1, 4, path) == "ello"
    assert api.client.stream_logs.stream(alloc, "t", "stdout", plain=True).startswith("hello")
    frame = json.loads(api.client.stream_logs.stream(alloc, "t", "stdout"))
    assert frame["File"] == path, frame
    status, text = refused(
        exceptions.URLNotAuthorizedNomadException, lambda: api.client.cat.read_file(alloc, "t/secrets/nomad_token")
    )
    assert status == 403, text
    assert refused(exceptions.BadRequestNomadException, lambda: api.client.cat.read_file(alloc, "../../x"))[0] == 400


def node(api):
    (stub,) = api.nodes.get_nodes()
    whole = api.node.get_node(stub["ID"])
    assert whole["Status"] == "ready" and whole["Drivers"]["raw_exec"]["Healthy"], whole
    assert [one["JobID"] for one in api.node.get_allocations(stub["ID"])][0] == "web"
    assert stub["ID"] in api.nodes


def agent(api):
    assert api.agent.get_agent()["stats"]["client"]["node_id"] == api.nodes.get_nodes()[0]["ID"]
    assert len(api.agent.get_members()["Members"]) == 1
    assert api.status.leader.get_leader() in api.status.peers.get_peers()
    assert len(api.regions.get_regions()) == 1
    assert api.namespaces.get_namespaces()[0]["Name"] == "default"
    assert api.namespace.get_namespace("default")["Name"] == "default"
    assert api.search.search("we", "jobs")["Matches"] == {"jobs": ["web"]}
    assert refused(exceptions.BaseNomadException, api.acl.get_tokens)[0] == 501


def events(api):
    alloc = running(api)["ID"]
    thread, leave, heard = api.event.stream.get_stream(index=1, topic="Allocation", timeout=10)
    thread.daemon = True
    thread.start()
    event = heard.get(timeout=30)["Events"][0]
    assert (event["Topic"], event["Namespace"]) == ("Allocation", "default"), event
    assert event["Payload"]["Allocation"]["ID"] == alloc, event
    leave.set()


def scaling(api):
    # The client has no method for scaling yet, but one for any path.
    def scale(count, message=""):
        wanted = {"Count": count, "Target": {"Group": "g"}, "Message": message}
        return api.job.request("web", "scale", json=wanted, method="post").json()

    def status():
        return api.job.request("web", "scale", method="get").json()["TaskGroups"]["g"]

    before = api.job.get_job("web")["Version"]
    answer = scale(2, "more")
    assert api.evaluation.get_evaluation(answer["EvalID"])["TriggeredBy"] == "job-scaling"
    until("two running allocations", lambda: status()["Running"] == 2)
    group = status()
    assert (group["Desired"], group["Events"][0]["PreviousCount"], group["Events"][0]["Message"]) == (2, 1, "more"), group
    assert api.job.get_job("web")["Version"] == before + 1
    scale(1)
    until("the event of scaling to one", lambda: len(status()["Events"]) == 2)


def changes(api):
    alloc = running(api)["ID"]
    api.client.allocation.signal_allocation(alloc, "SIGCONT", task="t")
    api.client.allocation.restart_allocation(alloc)
    until("a restart", lambda: api.allocation.get_allocation(alloc)["TaskStates"]["t"]["Restarts"] == 1)
    answer = api.allocation.stop_allocation(alloc)
    assert api.evaluation.get_evaluation(answer["EvalID"])["TriggeredBy"] == "alloc-stop"
    replaced = until("a replacement", lambda: [one for one in [running(api)] if one["ID"] != alloc])[0]
    assert api.allocation.get_allocation(replaced["ID"])["PreviousAllocation"] == alloc
    assert api.allocation.get_allocation(alloc)["DesiredStatus"] == "stop"
    text = api.job.get_job("web")
    assert text["Stop"] is False
    api.job.deregister_job("web")
    stopped = until("the job to stop", lambda: [one for one in [api.job.get_job("web")] if one["Stop"]])[0]
    assert (stopped["Status"], stopped["Version"]) == ("dead", text["Version"] + 1), stopped
    assert "web" in api.jobs and api.job.get_allocations("web")
    api.job.register_job("web", {"Job": text})
    until("the job to start", lambda: running(api) and api.job.get_job("web")["Status"] == "running")
    api.job.deregister_job("web", purge=True)
    until("the end of the job", lambda: "web" not in api.jobs)


def main(port, token):
    api = nomad.Nomad(host="127.0.0.1", port=int(port), token=token, timeout=10)
    for part in [jobs, allocations, files, node, agent, events, scaling, changes]:
        part(api)
        print(f"{part.__name__}: as in Nomad", flush=True)


main(*sys.argv[1:])
