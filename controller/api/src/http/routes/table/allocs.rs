//! Results of jobs: allocations, evaluations, deployments and services.

use super::{
    CallBody, Either, Field, FieldSource, Fields, Flag, Found, Ignored, KnownAlloc, List, NotBuilt,
    OMIT_OF_ALLOCS, OmitIdentities, Route, Servers, Text, Whole, delete, get, put, read, remove, write,
};
use crate::http::{allocs, deployments, evaluations, services};

/// As [`FIELDS_OF_JOBS`](super::FIELDS_OF_JOBS).
const FIELDS_OF_ALLOCS: &[(&str, FieldSource)] =
    &[("Fields.Resources", Flag("resources")), ("Fields.TaskStates", Flag("task_states"))];

const STOP: &[(&str, FieldSource)] =
    &[("NoShutdownDelay", Flag("no_shutdown_delay")), ("Reschedule", Flag("reschedule"))];
const HEALTH: CallBody = Fields(&["HealthyAllocationIDs", "UnhealthyAllocationIDs"]);

pub(super) const ROUTES: &[Route] = &[
    get(
        "allocation/{AllocID}/checks",
        served!(allocs::checks),
        Either("Allocations.Checks", read("ClientAllocations.Checks", Field("Results"))),
    ),
    get(
        "allocations",
        served!(allocs::list),
        Servers(read("Alloc.List", List("Allocations")).with(FIELDS_OF_ALLOCS).with_response(OMIT_OF_ALLOCS)),
    ),
    get(
        "allocation/{AllocID}",
        served!(allocs::read),
        Servers(read("Alloc.GetAlloc", Found("Alloc", "alloc not found")).with_response(OmitIdentities)),
    ),
    put(
        "allocation/{AllocID}/stop",
        served!(allocs::stop),
        Servers(write("Alloc.Stop", Ignored).with(STOP).with_response(KnownAlloc)),
    ),
    get(
        "allocation/{AllocID}/services",
        served!(services::of_alloc),
        Servers(read("Alloc.GetServiceRegistrations", Found("Services", "alloc not found"))),
    ),
    get(
        "evaluations",
        served!(evaluations::list),
        Servers(
            read("Eval.List", List("Evaluations"))
                .with(&[("FilterEvalStatus", Text("status")), ("FilterJobID", Text("job"))]),
        ),
    ),
    delete(
        "evaluations",
        NotBuilt("deletion of evaluations"),
        Servers(write("Eval.Delete", Fields(&["EvalIDs", "Filter"]))),
    ),
    get("evaluations/count", NotBuilt("counting evaluations"), Servers(read("Eval.Count", Whole))),
    get(
        "evaluation/{EvalID}",
        served!(evaluations::read),
        Servers(
            read("Eval.GetEval", Found("Eval", "eval not found"))
                .with(&[("IncludeRelated", Flag("related"))]),
        ),
    ),
    get(
        "evaluation/{EvalID}/allocations",
        served!(evaluations::allocations),
        Servers(read("Eval.Allocations", List("Allocations")).with_response(OMIT_OF_ALLOCS)),
    ),
    get("deployments", served!(deployments::list), Servers(read("Deployment.List", List("Deployments")))),
    get(
        "deployment/allocations/{DeploymentID}",
        served!(deployments::allocations),
        Servers(read("Deployment.Allocations", List("Allocations")).with_response(OMIT_OF_ALLOCS)),
    ),
    put(
        "deployment/promote/{DeploymentID}",
        served!(deployments::promote),
        Servers(write("Deployment.Promote", Fields(&["All", "Groups"]))),
    ),
    put(
        "deployment/fail/{DeploymentID}",
        served!(deployments::fail),
        Servers(write("Deployment.Fail", Ignored)),
    ),
    put(
        "deployment/pause/{DeploymentID}",
        served!(deployments::pause),
        Servers(write("Deployment.Pause", Fields(&["Pause"]))),
    ),
    put(
        "deployment/unblock/{DeploymentID}",
        NotBuilt("multiregion deployments"),
        Servers(write("Deployment.Unblock", Ignored)),
    ),
    put(
        "deployment/allocation-health/{DeploymentID}",
        served!(deployments::set_health),
        Servers(write("Deployment.SetAllocHealth", HEALTH)),
    ),
    get(
        "deployment/{DeploymentID}",
        served!(deployments::read),
        Servers(read("Deployment.GetDeployment", Found("Deployment", "deployment not found"))),
    ),
    get("services", served!(services::list), Servers(read("ServiceRegistration.List", List("Services")))),
    get(
        "service/{ServiceName}",
        served!(services::read),
        Servers(read("ServiceRegistration.GetService", List("Services")).with(&[("Choose", Text("choose"))])),
    ),
    delete(
        "service/{ServiceName}/{ID}",
        served!(services::remove),
        Servers(remove("ServiceRegistration.DeleteByID")),
    ),
];
