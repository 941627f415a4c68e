//! Our objects have every field of Nomad's, under the same name.

use herdlet_manifest::fixture::{alloc_view, job, job_view};
use serde_json::{Value, json};

use super::*;

/// Path, JSON pointer, and the fields of the object there.
const SHAPES: &[(&str, &str, &str)] = &[
    (
        "/v1/allocation/ALLOC",
        "",
        "ID Namespace EvalID Name NodeID NodeName JobID Job TaskGroup Resources SharedResources TaskResources \
         AllocatedResources Metrics DesiredStatus DesiredDescription DesiredTransition ClientStatus ClientDescription \
         TaskStates AllocStates PreviousAllocation NextAllocation DeploymentID DeploymentStatus RescheduleTracker \
         NetworkStatus FollowupEvalID PreemptedAllocations PreemptedByAllocation SignedIdentities SigningKeyID \
         CreateIndex ModifyIndex AllocModifyIndex CreateTime ModifyTime",
    ),
    (
        "/v1/allocation/ALLOC",
        "/Metrics",
        "NodesEvaluated NodesFiltered NodesInPool NodePool NodesAvailable ClassFiltered ConstraintFiltered NodesExhausted \
         ClassExhausted DimensionExhausted QuotaExhausted ResourcesExhausted Scores ScoreMetaData AllocationTime \
         CoalescedFailures",
    ),
    (
        "/v1/allocation/ALLOC",
        "/DesiredTransition",
        "Migrate Reschedule ForceReschedule NoShutdownDelay MigrateDisablePlacement",
    ),
    ("/v1/allocation/ALLOC", "/DeploymentStatus", "Healthy Timestamp Canary ModifyIndex"),
    (
        "/v1/allocation/ALLOC",
        "/TaskStates/httpd",
        "State Failed Restarts LastRestart StartedAt FinishedAt Events TaskHandle",
    ),
    ("/v1/allocation/ALLOC", "/AllocatedResources", "Tasks TaskLifecycles Shared"),
    (
        "/v1/allocations",
        "/0",
        "ID EvalID Name Namespace NodeID NodeName JobID JobType JobVersion TaskGroup AllocatedResources DesiredStatus \
         DesiredDescription ClientStatus ClientDescription DesiredTransition TaskStates DeploymentStatus FollowupEvalID \
         NextAllocation RescheduleTracker PreemptedAllocations PreemptedByAllocation CreateIndex ModifyIndex CreateTime \
         ModifyTime",
    ),
    (
        "/v1/job/web",
        "",
        "Stop Region Namespace ID ParentID Name Type Priority AllAtOnce Datacenters NodePool Constraints Affinities Spreads \
         TaskGroups Update Multiregion Periodic ParameterizedJob Dispatched DispatchIdempotencyToken Payload Meta ConsulToken \
         ConsulNamespace VaultToken VaultNamespace NomadTokenID Status StatusDescription Stable Version SubmitTime CreateIndex \
         ModifyIndex JobModifyIndex UI VersionTag",
    ),
    (
        "/v1/jobs",
        "/0",
        "ID ParentID Name Namespace Datacenters NodePool Multiregion Type Priority Periodic ParameterizedJob Stop Status \
         StatusDescription JobSummary CreateIndex ModifyIndex JobModifyIndex SubmitTime Meta",
    ),
    ("/v1/job/web/summary", "", "JobID Namespace Summary Children CreateIndex ModifyIndex"),
    ("/v1/job/web/summary", "/Summary/front", "Queued Complete Failed Running Starting Lost Unknown"),
    (
        "/v1/node/n1",
        "",
        "ID SecretID Datacenter Name CgroupParent HTTPAddr TLSEnabled Attributes NodeResources ReservedResources Resources \
         Reserved Links Meta NodeClass NodePool ComputedClass Drain DrainStrategy SchedulingEligibility Status \
         StatusDescription StatusUpdatedAt Events Drivers CSIControllerPlugins CSINodePlugins HostVolumes GCVolumesOnNodeGC \
         HostNetworks LastDrain NodeMaxAllocs LastMissedHeartbeatIndex LastAllocUpdateIndex CreateIndex ModifyIndex",
    ),
    (
        "/v1/nodes",
        "/0",
        "Address ID Attributes Datacenter Name NodePool NodeClass Version Drain SchedulingEligibility Status \
         StatusDescription Drivers HostVolumes NodeResources ReservedResources LastDrain CreateIndex ModifyIndex",
    ),
    (
        "/v1/evaluations",
        "/0",
        "ID Namespace Priority Type TriggeredBy JobID JobModifyIndex NodeID NodeModifyIndex DeploymentID Status \
         StatusDescription Wait WaitUntil NextEval PreviousEval BlockedEval RelatedEvals FailedTGAllocs ClassEligibility \
         QuotaLimitReached EscapedComputedClass AnnotatePlan QueuedAllocations SnapshotIndex CreateIndex ModifyIndex \
         CreateTime ModifyTime",
    ),
    ("/v1/namespaces", "/0", "Name Description Quota Capabilities Meta CreateIndex ModifyIndex"),
    ("/v1/agent/members", "", "ServerName ServerRegion ServerDC Members"),
];

async fn test_env() -> (ApiFixture, String) {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let view = alloc_view(&web, 0, 7);
    let id = view.spec.id.to_string();
    let shown = JobView { allocs: vec![view.spec.id], ..job_view(&web, 0) };
    ground.show(5, &[shown], &[view]);
    ground.unix(Limits::default()).await;
    (ground, id)
}

#[tokio::test]
async fn every_nomad_field_is_present() {
    let (ground, id) = test_env().await;
    let evaluated =
        ground.http().put("http://localhost/v1/job/web/evaluate").body("{}").send().await.unwrap();
    assert_eq!(evaluated.status().as_u16(), 200);
    for (path, pointer, fields) in SHAPES {
        let path = path.replace("ALLOC", &id);
        let (status, text) = ground.get(&path).await;
        assert_eq!(status, 200, "{path}: {text}");
        let shown: Value = serde_json::from_str(&text).unwrap();
        let object = shown
            .pointer(pointer)
            .and_then(Value::as_object)
            .unwrap_or_else(|| panic!("{path} {pointer}: {shown}"));
        let missing: Vec<&str> =
            fields.split_whitespace().filter(|field| !object.contains_key(*field)).collect();
        assert!(missing.is_empty(), "{path} {pointer} has no {missing:?}");
    }
}

#[tokio::test]
async fn single_objects_have_nomad_shapes() {
    let (ground, id) = test_env().await;
    let get = async |path: &str| serde_json::from_str::<Value>(&ground.get(path).await.1).unwrap();
    assert_eq!(get("/v1/status/peers").await, json!(["127.0.0.1:4647"]));
    assert_eq!(get("/v1/job/web/summary").await["Summary"]["front"]["Running"], 1);
    assert_eq!(get("/v1/jobs").await[0]["JobSummary"]["Summary"]["front"]["Queued"], 0);
    assert_eq!(ground.get("/v1/node/other").await, (404, "node not found".to_owned()));
    assert_eq!(ground.get("/v1/namespace/other").await.0, 404);
    assert_eq!(ground.get("/v1/evaluation/none").await, (404, "eval not found".to_owned()));
    let search = async |body: &str| {
        let answer =
            ground.http().post("http://localhost/v1/search").body(body.to_owned()).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (_, found) = search(r#"{"Prefix":"","Context":"all"}"#).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["Matches"]["jobs"], &found["Matches"]["allocs"]), (&json!(["web"]), &json!([id])));
    assert_eq!(found["Truncations"]["jobs"], false);
    assert_eq!(search(r#"{"Prefix":"w","Context":"nothing"}"#).await.0, 400);
    assert_eq!(ground.get("/v1/acl/tokens").await.0, 501);
    assert_eq!(ground.get("/v1/what").await.0, 404);
}
