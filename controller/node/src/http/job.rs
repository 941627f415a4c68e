//! Completes a job of Nomad's JSON API: what a client agent fills in before it forwards the job to servers.
//!
//! In: the job of a request, in which anything may be missing. Out: the job with every default that servers expect to be filled in, and
//! without fields that only servers set. All other fields, such as a driver's or a later version's, are passed through for servers to
//! check.
//!
//! Facts: `hashicorp/nomad:command/agent/job_endpoint.go` (`ApiJobToStructJob`), `api/jobs.go`, `api/tasks.go`, `api/services.go`,
//! `api/consul.go`, `api/resources.go` (`Canonicalize`).

mod network;
mod policies;
mod task;

use serde_json::{Map, Value as Json, json};

/// The fields of an object.
type Fields = Map<String, Json>;

/// Fields of a job that only servers set.
const OF_SERVERS: [&str; 11] = [
    "CreateIndex",
    "DispatchIdempotencyToken",
    "Dispatched",
    "JobModifyIndex",
    "ModifyIndex",
    "NomadTokenID",
    "ParentID",
    "Stable",
    "Status",
    "StatusDescription",
    "SubmitTime",
];

/// The job's properties that its groups and tasks need.
struct Context<'j> {
    job: &'j Fields,
    /// The job's name, used in names of services.
    name: String,
    kind: String,
}

/// A job and where to send it.
#[derive(Debug, PartialEq)]
pub(super) struct Submitted {
    /// The whole job.
    pub(super) job: Json,
    /// The region of the request; `None` for the node's own.
    pub(super) region: Option<String>,
    /// The namespace of the request and the job.
    pub(super) namespace: String,
}

/// Prepares a job for servers. `region` and `namespace` are from the query, or else from the body; `home` is the node's region.
pub(super) fn submitted(
    mut job: Fields,
    region: Option<&str>,
    namespace: Option<&str>,
    home: &str,
) -> Submitted {
    let own = |name: &str| job.get(name).and_then(Json::as_str).filter(|text| !text.is_empty());
    let namespace = namespace.or_else(|| own("Namespace")).unwrap_or("default").to_owned();
    let wanted = region.or_else(|| own("Region")).filter(|region| *region != "global").unwrap_or(home);
    let mut region = wanted.to_owned();
    let mut of_job = region.clone();
    if let Some(Json::Object(multi)) = job.get("Multiregion") {
        "global".clone_into(&mut of_job);
        let names: Vec<&str> =
            list(multi, "Regions").filter_map(|region| region.get("Name")?.as_str()).collect();
        if let Some(first) = names.first().filter(|_| !names.contains(&&*region)) {
            (*first).clone_into(&mut region);
        }
    }
    job.insert("Namespace".to_owned(), namespace.clone().into());
    complete(&mut job);
    job.insert("Region".to_owned(), of_job.into());
    Submitted { job: Json::Object(job), region: Some(region).filter(|region| !region.is_empty()), namespace }
}

/// Fills in the defaults of a job.
pub(super) fn complete(job: &mut Fields) {
    job.retain(|name, _| !OF_SERVERS.contains(&&**name));
    fill(job, json!({ "ID": "" }));
    let id = job["ID"].clone();
    fill(
        job,
        json!({
            "Name": id, "Namespace": "default", "Region": "global", "Priority": 50, "Stop": false, "NodePool": "", "Type": "service",
            "AllAtOnce": false, "VaultNamespace": "", "Version": 0,
        }),
    );
    if let Some(periodic) = inner(job, "Periodic") {
        fill(
            periodic,
            json!({ "Enabled": true, "Spec": "", "Specs": [], "SpecType": "cron", "ProhibitOverlap": false, "TimeZone": "UTC" }),
        );
        fill_empty(periodic, &[("TimeZone", "UTC")]);
    }
    if let Some(multi) = inner(job, "Multiregion") {
        fill(multi, json!({ "Strategy": {}, "Regions": [] }));
        if let Some(strategy) = inner(multi, "Strategy") {
            fill(strategy, json!({ "MaxParallel": 0, "OnFailure": "" }));
        }
        each(multi, "Regions", |region| fill(region, json!({ "Count": 1, "Datacenters": [], "Meta": {} })));
    }
    if let Some(ui) = inner(job, "UI") {
        each(ui, "Links", |link| rename(link, "URL", "Url"));
    }
    policies::weigh(job);
    let kind = text(job, "Type");
    if let Some(update) = inner(job, "Update") {
        fill(update, policies::update());
    } else if matches!(&*kind, "service" | "system") {
        job.insert("Update".to_owned(), policies::update());
    }
    let mut groups = job.remove("TaskGroups");
    let context = Context { job, name: text(job, "Name"), kind };
    if let Some(Json::Array(groups)) = &mut groups {
        groups.iter_mut().filter_map(Json::as_object_mut).for_each(|group| of_group(group, &context));
    }
    if let Some(groups) = groups {
        job.insert("TaskGroups".to_owned(), groups);
    }
    // Groups have inherited the block; the job itself keeps only these fields.
    if let Some(update) = inner(job, "Update") {
        let is_used = update.get("MaxParallel").and_then(Json::as_i64).is_some_and(|max| max > 0);
        update.retain(|name, _| is_used && matches!(&**name, "Stagger" | "MaxParallel"));
    }
    job.remove("Reschedule");
    job.remove("Migrate");
}

fn of_group(group: &mut Fields, context: &Context<'_>) {
    fill(group, json!({ "Name": "" }));
    let least = group.get("Scaling").and_then(|scaling| scaling.get("Min")).filter(|min| !min.is_null());
    let count = least.cloned().unwrap_or_else(|| 1.into());
    fill(group, json!({ "Count": count, "EphemeralDisk": {} }));
    let (name, count) = (text(group, "Name"), group["Count"].clone());
    if let Some(scaling) = inner(group, "Scaling") {
        policies::scaling(scaling, &count, json!({}), &name, context);
    }
    if let Some(disk) = inner(group, "EphemeralDisk") {
        fill(disk, json!({ "Sticky": false, "Migrate": false, "SizeMB": 300 }));
    }
    let consul = text(context.job, "ConsulNamespace");
    if let Some(own) = inner(group, "Consul") {
        fill_empty(own, &[("Namespace", &consul), ("Cluster", "default")]);
    }
    policies::of_group(group, context);
    if let Some(Json::Object(volumes)) = group.get_mut("Volumes") {
        volumes.retain(|_, volume| matches!(volume.get("Type").and_then(Json::as_str), Some("host" | "csi")));
    }
    let restart = group["RestartPolicy"].clone();
    each(group, "Tasks", |task| task::complete(task, &name, &restart, context));
    policies::weigh(group);
    let of_service = format!("{}-{name}", context.name);
    each(group, "Services", |service| network::service(service, &of_service));
    if let Some(disconnect) = inner(group, "Disconnect") {
        fill(disconnect, json!({ "Replace": true, "Reconcile": "best_score" }));
    }
}

/// Sets fields that are missing or null.
fn fill(fields: &mut Fields, defaults: Json) {
    let Json::Object(defaults) = defaults else { return };
    for (name, value) in defaults {
        let field = fields.entry(name).or_insert(Json::Null);
        if field.is_null() {
            *field = value;
        }
    }
}

/// Sets text fields that are missing, null or empty.
fn fill_empty(fields: &mut Fields, defaults: &[(&str, &str)]) {
    for (name, value) in defaults {
        if text(fields, name).is_empty() {
            fields.insert((*name).to_owned(), (*value).into());
        }
    }
}

/// Merges two blocks; the fields of `narrow` win.
fn merge(wide: Json, narrow: Option<&Json>) -> Json {
    let Json::Object(mut merged) = wide else { return Json::Null };
    let own = narrow.and_then(Json::as_object).into_iter().flatten();
    merged
        .extend(own.filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())));
    Json::Object(merged)
}

fn rename(fields: &mut Fields, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

/// Renames a field from its older name, if it has a value.
fn supersede(fields: &mut Fields, older: &str, name: &str) {
    if let Some(value) = fields.remove(older).filter(|value| !value.is_null()) {
        fields.insert(name.to_owned(), value);
    }
}

fn inner<'f>(fields: &'f mut Fields, name: &str) -> Option<&'f mut Fields> {
    fields.get_mut(name).and_then(Json::as_object_mut)
}

fn list<'f>(fields: &'f Fields, name: &str) -> impl Iterator<Item = &'f Fields> {
    fields.get(name).and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_object)
}

fn each(fields: &mut Fields, name: &str, of_one: impl FnMut(&mut Fields)) {
    let all = fields.get_mut(name).and_then(Json::as_array_mut);
    all.into_iter().flatten().filter_map(Json::as_object_mut).for_each(of_one);
}

/// A text field; empty if missing.
fn text(fields: &Fields, name: &str) -> String {
    fields.get(name).and_then(Json::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
